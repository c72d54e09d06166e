#include "train/corpus.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "text/utf8.h"
#include "train/sha256.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kMaxPiece = size_t{64} << 20;  // text that is tokenized at once
constexpr size_t kMaxFile = size_t{16} << 30;
constexpr std::string_view kMagic = "PENSTOKS";

// The first bytes of a cache file; numbers are little-endian.
struct CacheHeader {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t documents;
  uint64_t tokens;
  char key[64];
  char digest[64];  // SHA-256 of everything behind the header
};

static_assert(sizeof(CacheHeader) == 160);

// Tokens of all documents while they are made.
struct Tokens {
  std::vector<int64_t> starts = {0};
  std::vector<int32_t> ids;
  std::vector<uint8_t> counts;

  void Add(std::span<const int32_t> more, uint8_t count) {
    ids.insert(ids.end(), more.begin(), more.end());
    counts.insert(counts.end(), more.size(), count);
  }

  void EndDocument() { starts.push_back(static_cast<int64_t>(ids.size())); }
};

// "file:line:column" of a byte, both from 1.
std::string Place(const std::string& path, std::string_view text, size_t at, int64_t first_line) {
  const std::string_view before = text.substr(0, at);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? at + 1 : at - newline;
  return fmt::format("{}:{}:{}", path, first_line + lines, column);
}

Result<> CheckUtf8(const std::string& path, std::string_view text, int64_t first_line) {
  const size_t bad = text::FindIllFormed(text, 0);
  if (bad == text.size()) {
    return {};
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "[train.corpus] {}: the byte 0x{:02x} (number {} of the text) begins no UTF-8 "
                   "character, wanted UTF-8",
                   Place(path, text, bad, first_line), static_cast<unsigned char>(text[bad]),
                   bad + 1);
}

// The end of the piece of at most kMaxPiece bytes that begins at `begin`: behind a line's end where
// there is one, never inside a character.
size_t PieceEnd(std::string_view text, size_t begin) {
  if (text.size() - begin <= kMaxPiece) {
    return text.size();
  }
  const size_t newline = text.rfind('\n', begin + kMaxPiece - 1);
  if (newline != std::string_view::npos && newline > begin) {
    return newline + 1;
  }
  size_t end = begin + kMaxPiece;
  while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return end;
}

class Reader {
 public:
  Reader(const DataSection& data, const text::Tokenizer& tokenizer,
         const text::ChatTemplate* chat_template)
      : data_(data), tokenizer_(tokenizer), chat_template_(chat_template) {}

  Result<> ReadFile(const std::string& path, std::string_view text) {
    if (data_.format == DataFormat::kText) {
      PENSTOCK_TRY(CheckUtf8(path, text, 1));
      return AddText(path, text);
    }
    int64_t line = 1;
    for (size_t begin = 0; begin < text.size(); ++line) {
      const size_t newline = std::min(text.find('\n', begin), text.size());
      std::string_view row = text.substr(begin, newline - begin);
      Progress();
      begin = newline + 1;
      if (line == 1 && row.starts_with("\xEF\xBB\xBF")) {
        row.remove_prefix(3);
      }
      if (row.find_first_not_of(" \t\r") != std::string_view::npos) {
        PENSTOCK_TRY(ReadLine(path, row, line));
      }
    }
    return {};
  }

  Tokens Take() && { return std::move(tokens_); }

  int64_t unanswered() const { return unanswered_; }

 private:
  Result<> ReadLine(const std::string& path, std::string_view row, int64_t line) {
    PENSTOCK_TRY(CheckUtf8(path, row, line));
    const std::string where = fmt::format("{}:{}", path, line);
    PENSTOCK_TRY_ASSIGN(const Json json, ParseJson(row, where));
    if (!json.is_object()) {
      return MakeError(
          ErrorCode::kInvalidArgument, "[train.corpus] {}: got a JSON {}, wanted an object with {}",
          where, json.type_name(), data_.format == DataFormat::kChat ? "\"messages\"" : "\"text\"");
    }
    if (data_.format == DataFormat::kJsonl) {
      PENSTOCK_TRY_ASSIGN(const std::string text, JsonReader(json, where).String("text"));
      return AddText(where, text);
    }
    if (!json.contains("messages")) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[train.corpus] {}: no \"messages\", wanted them with data.format = "
                       "\"chat\"",
                       where);
    }
    auto messages = text::ReadChatMessages(json, where);
    if (!messages.ok()) {
      const std::string& why = messages.error().message;
      return why.find(where) != std::string::npos
                 ? messages.error()
                 : MakeError(messages.error().code, "[train.corpus] {}: {}", where, why);
    }
    return AddChat(where, messages.value());
  }

  Result<> AddText(const std::string& where, std::string_view text) {
    if (text.empty()) {
      return {};
    }
    const auto prefix = tokenizer_.prefix_ids();
    const auto suffix = tokenizer_.suffix_ids();
    tokens_.Add(prefix, 1);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = PieceEnd(text, begin);
      Progress();
      text::EncodeOptions options;
      options.add_special = false;
      auto ids = tokenizer_.Encode(text.substr(begin, end - begin), options);
      if (!ids.ok()) {
        return MakeError(ids.error().code, "[train.corpus] {}: {}", where, ids.error().message);
      }
      tokens_.Add(ids.value(), 1);
      begin = end;
    }
    tokens_.Add(suffix, 1);
    const std::optional<int32_t> end_id = tokenizer_.eos_id();
    if (end_id.has_value() && (suffix.empty() || suffix.back() != *end_id)) {
      tokens_.Add(std::span(&*end_id, 1), 1);
    }
    tokens_.EndDocument();
    return {};
  }

  Result<> AddChat(const std::string& where, const std::vector<text::ChatMessage>& messages) {
    if (std::none_of(messages.begin(), messages.end(),
                     [](const auto& message) { return message.role == "assistant"; })) {
      ++unanswered_;
      LogNote("{}: no answer in this conversation, it is left out", where);
      return {};
    }
    auto counted = EncodeAnswers(*chat_template_, tokenizer_, messages);
    if (!counted.ok()) {
      return MakeError(counted.error().code, "[train.corpus] {}: {}", where,
                       counted.error().message);
    }
    tokens_.ids.insert(tokens_.ids.end(), counted->ids.begin(), counted->ids.end());
    tokens_.counts.insert(tokens_.counts.end(), counted->counts.begin(), counted->counts.end());
    tokens_.EndDocument();
    return {};
  }

  const DataSection& data_;
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate* chat_template_;
  Tokens tokens_;
  int64_t unanswered_ = 0;
};

std::string_view TextOf(const MappedFile& file) {
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// All files, mapped. Empty files are refused here: they are a mistake more often than not.
Result<std::vector<MappedFile>> MapAll(const std::vector<std::string>& paths) {
  std::vector<MappedFile> files;
  for (const std::string& path : paths) {
    auto file = MappedFile::Open(path);
    if (!file.ok()) {
      std::error_code code;
      if (fs::is_regular_file(path, code) && fs::file_size(path, code) == 0) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "[train.corpus] {}: the file is empty, wanted text", path);
      }
      return file.error();
    }
    if (file->bytes().size() > kMaxFile) {
      return MakeError(ErrorCode::kInvalidArgument, "[train.corpus] {}: {}, wanted at most {}",
                       path, FormatBytes(static_cast<double>(file->bytes().size())),
                       FormatBytes(static_cast<double>(kMaxFile)));
    }
    files.push_back(std::move(file).value());
  }
  return files;
}

std::string CorpusKey(const DataSection& data, const std::vector<MappedFile>& files,
                      const std::string& tokenizer_digest, const text::ChatTemplate* chat) {
  Sha256 digest;
  digest.Update(fmt::format("penstock tokens {} {} {} {}\n", kVersion,
                            static_cast<int>(data.format), tokenizer_digest,
                            chat == nullptr ? "" : chat->name));
  for (const MappedFile& file : files) {
    digest.Update(fmt::format("{}\n", file.bytes().size()));
    digest.Update(file.bytes());
  }
  return digest.Hex();
}

template <class T>
void Append(std::vector<std::byte>& out, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

// Writes and reads cache files.
class CorpusFile {
 public:
  static std::vector<std::byte> Encode(const Tokens& tokens, const std::string& key) {
    std::vector<std::byte> bytes(sizeof(CacheHeader));
    Append<int64_t>(bytes, tokens.starts);
    Append<int32_t>(bytes, tokens.ids);
    Append<uint8_t>(bytes, tokens.counts);
    CacheHeader header{};
    std::memcpy(header.magic, kMagic.data(), sizeof(header.magic));
    header.version = kVersion;
    header.documents = tokens.starts.size() - 1;
    header.tokens = tokens.ids.size();
    std::memcpy(header.key, key.data(), sizeof(header.key));
    const std::string digest = Sha256Hex(std::span(bytes).subspan(sizeof(CacheHeader)));
    std::memcpy(header.digest, digest.data(), sizeof(header.digest));
    std::memcpy(bytes.data(), &header, sizeof(header));
    return bytes;
  }

  // Sets the views of `corpus` into `bytes`. False where they are not a whole cache of this key.
  static bool Decode(std::span<const std::byte> bytes, const std::string& key, Corpus& corpus) {
    CacheHeader header{};
    if (bytes.size() < sizeof(header)) {
      return false;
    }
    std::memcpy(&header, bytes.data(), sizeof(header));
    const std::span<const std::byte> body = bytes.subspan(sizeof(header));
    if (std::string_view(header.magic, sizeof(header.magic)) != kMagic ||
        header.version != kVersion || std::string_view(header.key, sizeof(header.key)) != key ||
        header.documents > body.size() / 8 || header.tokens > body.size() / 5 ||
        body.size() != (header.documents + 1) * 8 + header.tokens * 5 ||
        Sha256Hex(body) != std::string_view(header.digest, sizeof(header.digest))) {
      return false;
    }
    const auto* starts = reinterpret_cast<const int64_t*>(body.data());
    const auto* ids = reinterpret_cast<const int32_t*>(starts + header.documents + 1);
    const auto* counts = reinterpret_cast<const uint8_t*>(ids + header.tokens);
    corpus.key_ = key;
    corpus.starts_ = {starts, header.documents + 1};
    corpus.tokens_ = {ids, header.tokens};
    corpus.counts_ = {counts, header.tokens};
    return true;
  }

  static bool Load(const std::string& path, const std::string& key, Corpus& corpus) {
    auto file = MappedFile::Open(path);
    if (!file.ok()) {
      return false;
    }
    corpus.map_ = std::make_shared<const MappedFile>(std::move(file).value());
    if (Decode(corpus.map_->bytes(), key, corpus)) {
      return true;
    }
    corpus.map_.reset();
    LogNote("{}: not a whole token cache, it is made again", path);
    return false;
  }

  static Corpus Keep(std::vector<std::byte> bytes, const std::string& key) {
    Corpus corpus;
    corpus.memory_ = std::move(bytes);
    PENSTOCK_CHECK(Decode(corpus.memory_, key, corpus), "what was encoded can be decoded");
    return corpus;
  }

  static void MarkCached(Corpus& corpus) { corpus.cached_ = true; }
};

std::string TokenCacheFolder() {
  for (const auto& [variable, below] :
       {std::pair{"PENSTOCK_CACHE", ""}, std::pair{"XDG_CACHE_HOME", "penstock"},
        std::pair{"HOME", ".cache/penstock"}}) {
    const char* folder = std::getenv(variable);
    if (folder != nullptr && *folder != 0) {
      return (fs::path(folder) / below / "tokens").string();
    }
  }
  return "";
}

Result<Corpus> OpenCorpus(const DataSection& data, const LoadedTokenizer& tokenizer,
                          const std::string& tokenizer_digest, const std::string& cache_folder) {
  const text::ChatTemplate* chat = nullptr;
  if (data.format == DataFormat::kChat) {
    PENSTOCK_TRY_ASSIGN(chat, PickTemplate(tokenizer, data.chat_template, "data.template"));
  }
  PENSTOCK_TRY_ASSIGN(const std::vector<MappedFile> files, MapAll(data.paths));
  const std::string key = CorpusKey(data, files, tokenizer_digest, chat);
  const std::string path =
      cache_folder.empty() ? "" : (fs::path(cache_folder) / (key + ".tokens")).string();
  Corpus corpus;
  if (!path.empty() && FileExists(path) && CorpusFile::Load(path, key, corpus)) {
    CorpusFile::MarkCached(corpus);
    return corpus;
  }
  Reader reader(data, tokenizer.tokenizer, chat);
  for (size_t i = 0; i < files.size(); ++i) {
    PENSTOCK_TRY(reader.ReadFile(data.paths[i], TextOf(files[i])));
  }
  const int64_t unanswered = reader.unanswered();
  const Tokens tokens = std::move(reader).Take();
  if (tokens.ids.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "[train.corpus] {}: no {}, wanted at least one",
                     fmt::join(data.paths, ", "),
                     unanswered > 0 ? "conversation with an answer of the assistant" : "text");
  }
  std::vector<std::byte> bytes = CorpusFile::Encode(tokens, key);
  std::error_code code;
  if (!path.empty()) {
    fs::create_directories(cache_folder, code);
    const auto written =
        WriteFileAtomically(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (written.ok() && CorpusFile::Load(path, key, corpus)) {
      return corpus;
    }
  }
  return CorpusFile::Keep(std::move(bytes), key);
}

Result<CountedIds> EncodeAnswers(const text::ChatTemplate& chat_template,
                                 const text::Tokenizer& tokenizer,
                                 const std::vector<text::ChatMessage>& messages) {
  CountedIds result;
  std::string done;  // text that `result` stands for
  text::EncodeOptions plain;
  plain.add_special = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") {
      continue;
    }
    text::ChatOptions ask;
    text::ChatOptions told;
    told.add_generation_prompt = false;
    const std::vector<text::ChatMessage> before(messages.begin(),
                                                messages.begin() + static_cast<ptrdiff_t>(i));
    const std::vector<text::ChatMessage> with(messages.begin(),
                                              messages.begin() + static_cast<ptrdiff_t>(i) + 1);
    PENSTOCK_TRY_ASSIGN(const std::string prompt,
                        text::RenderChat(chat_template, tokenizer, before, ask));
    PENSTOCK_TRY_ASSIGN(const std::string whole,
                        text::RenderChat(chat_template, tokenizer, with, told));
    if (!prompt.starts_with(done) || !whole.starts_with(prompt)) {
      return MakeError(ErrorCode::kUnsupported,
                       "[train.corpus] message {}: the template '{}' prints what came before an "
                       "answer otherwise once the answer is there; wanted one that does not",
                       i + 1, chat_template.name);
    }
    std::vector<int32_t> ids;
    if (done.empty()) {
      PENSTOCK_TRY_ASSIGN(ids, text::EncodeChat(chat_template, tokenizer, before, ask));
    } else {
      PENSTOCK_TRY_ASSIGN(ids, tokenizer.Encode(prompt.substr(done.size()), plain));
    }
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    result.counts.resize(result.ids.size(), 0);
    PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> answer,
                        tokenizer.Encode(whole.substr(prompt.size()), plain));
    const auto last = std::find_if(answer.rbegin(), answer.rend(),
                                   [&](int32_t id) { return tokenizer.IsSpecial(id); });
    const auto counted =
        last == answer.rend() ? answer.size() : static_cast<size_t>(answer.rend() - last);
    result.ids.insert(result.ids.end(), answer.begin(), answer.end());
    result.counts.resize(result.counts.size() + counted, 1);
    result.counts.resize(result.ids.size(), 0);
    done = whole;
  }
  return result;
}

}  // namespace penstock::train
