#include "schedule/text/text.h"

#include <algorithm>

#include "base/file.h"
#include "schedule/text/parts.h"

namespace penstock::schedule {

std::string_view DialectText(Dialect dialect) {
  switch (dialect) {
    case Dialect::kNative:
      return "native";
    case Dialect::kBw:
      return "bw";
    case Dialect::kPlain:
      return "plain";
    case Dialect::kWait:
      break;
  }
  return "wait";
}

Result<Dialect> ParseDialect(std::string_view text) {
  for (const Dialect dialect : {Dialect::kNative, Dialect::kBw, Dialect::kPlain, Dialect::kWait}) {
    if (DialectText(dialect) == text)
      return dialect;
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "[schedule.dialect] got {}, wanted native, bw, plain or wait", Shown(text));
}

std::string Shown(std::string_view text) {
  constexpr size_t kLength = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kLength))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > kLength ? "...'" : "'");
}

std::string StemOf(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  const size_t dot = name.find_last_of('.');
  if (dot != std::string::npos && dot > 0)
    name.resize(dot);
  for (char& c : name) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f)
      c = '_';
  }
  return name.empty() ? "schedule" : name;
}

Error TextError(std::string_view part, const std::string& source, int row, int column,
                std::string_view got, std::string_view wanted, TextPlace* place) {
  if (place != nullptr)
    *place = {row, column, part == "csv"};
  std::string where = source;
  if (row > 0)
    where += fmt::format(":{}", row);
  if (row > 0 && column > 0)
    where += fmt::format(":{}", column);
  return MakeError(ErrorCode::kCorruptData, "[schedule.{}] {}: got {}, wanted {}", part, where, got,
                   wanted);
}

Result<ScheduleText> ParseSchedule(std::string_view text, const std::string& source,
                                   TextPlace* place) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark)
    text.remove_prefix(kByteOrderMark.size());
  size_t start = 0;
  while (start < text.size() &&
         (text[start] == '#' || text[start] == '\n' || text[start] == '\r')) {
    if (text[start] == '#')
      start = std::min(text.find('\n', start), text.size());
    if (start < text.size())
      ++start;
  }
  if (text.substr(start, kNativeMagic.size()) == kNativeMagic)
    return ParseNative(text, source, place);
  return ParseCsv(text, source, place);
}

Result<ScheduleText> ReadScheduleFile(const std::string& path, TextPlace* place) {
  PENSTOCK_TRY_ASSIGN(const std::string text, ReadFile(path));
  return ParseSchedule(text, path, place);
}

}  // namespace penstock::schedule
