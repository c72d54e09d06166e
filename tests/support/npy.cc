#include "support/npy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <regex>

#include "base/file.h"

namespace penstock::testing {

Result<Npy> ReadNpy(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const std::string text, ReadFile(path));
  const auto wrong = [&](const std::string& what) {
    return MakeError(ErrorCode::kCorruptData, "[testing.ReadNpy] {}: {}", path, what);
  };
  if (text.size() < 10 || text.compare(0, 6, "\x93NUMPY") != 0 || text[6] != 1) {
    return wrong("not a .npy file of version 1");
  }
  const size_t length =
      static_cast<unsigned char>(text[8]) + 256U * static_cast<unsigned char>(text[9]);
  const std::string header = text.substr(10, length);
  static const std::regex kHeader(
      R"(\{'descr': '<f4', 'fortran_order': False, 'shape': \((\d+),(?: (\d+))?\), \}\s*)");
  std::smatch match;
  if (!std::regex_match(header, match, kHeader)) {
    return wrong("header " + header);
  }
  Npy out;
  out.rows = match[2].matched ? std::stoll(match[1]) : 1;
  out.columns = std::stoll(match[2].matched ? match[2] : match[1]);
  const size_t count = static_cast<size_t>(out.rows) * static_cast<size_t>(out.columns);
  if (text.size() != 10 + length + 4 * count) {
    return wrong("size is not that of the header");
  }
  static_assert(std::endian::native == std::endian::little);
  out.values.resize(count);
  std::memcpy(out.values.data(), text.data() + 10 + length, 4 * count);
  return out;
}

double RelativeError(const Npy& got, const Npy& want) {
  if (got.rows != want.rows || got.columns != want.columns) {
    return std::numeric_limits<double>::infinity();
  }
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < want.values.size(); ++i) {
    const double d = static_cast<double>(got.values[i]) - want.values[i];
    difference += d * d;
    norm += static_cast<double>(want.values[i]) * want.values[i];
  }
  const double error = std::sqrt(difference / norm);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

double LargestError(const Npy& got, const Npy& want) {
  if (got.rows != want.rows || got.columns != want.columns) {
    return std::numeric_limits<double>::infinity();
  }
  double off = 0;
  double most = 0;
  for (size_t i = 0; i < want.values.size(); ++i) {
    const double wanted = want.values[i];
    const double difference = std::abs(got.values[i] - wanted);
    if (!std::isfinite(difference)) {
      return std::numeric_limits<double>::infinity();
    }
    off = std::max(off, difference);
    most = std::max(most, std::abs(wanted));
  }
  return off / most;
}

}  // namespace penstock::testing
