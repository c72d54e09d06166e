#include "text/tokenizer_file.h"

#include <optional>

#include "base/json.h"
#include "text/vocabulary.h"

namespace penstock::text {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxMembers = 4096;  // of one object of the rest

// Receives the parser's events. Every handler returns false to stop, with `error_` set.
class Handler : public nlohmann::json_sax<Json> {
 public:
  Handler(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  bool null() override { return Value(Json(nullptr)); }

  bool boolean(bool value) override { return Value(Json(value)); }

  bool number_integer(number_integer_t value) override {
    return Number(static_cast<double>(value), Json(value));
  }

  bool number_unsigned(number_unsigned_t value) override {
    return Number(static_cast<double>(value), Json(value));
  }

  bool number_float(number_float_t value, const string_t&) override {
    return Number(value, Json(value));
  }

  bool string(string_t& value) override {
    switch (place_) {
      case Place::kRest:
        return Value(Json(std::move(value)));
      case Place::kPair:
        if (pair_size_ == 0) {
          out_.vocabulary.emplace_back(std::move(value), -1);
          ++pair_size_;
          return true;
        }
        break;
      case Place::kMerges:
        return AddMerge(value);
      case Place::kMerge:
        if (pair_size_ < 2) {
          (pair_size_ == 0 ? out_.merges.emplace_back().first : out_.merges.back().second) =
              std::move(value);
          ++pair_size_;
          return true;
        }
        break;
      default:
        break;
    }
    return Refuse("a string");
  }

  bool binary(binary_t&) override { return Refuse("binary data"); }

  bool start_object(size_t) override {
    if (place_ != Place::kRest) {
      return Refuse("an object");
    }
    if (InModel("vocab")) {
      place_ = Place::kVocabularyMap;
      return true;
    }
    return Open(Json::object());
  }

  bool key(string_t& value) override {
    if (place_ == Place::kVocabularyMap) {
      out_.vocabulary.emplace_back(std::move(value), -1);
      return true;
    }
    if (stack_.back().value.size() >= kMaxMembers) {
      return Refuse("an object with too many members");
    }
    stack_.back().key = std::move(value);
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kVocabularyMap) {
      place_ = Place::kRest;
      return true;
    }
    return Close();
  }

  bool start_array(size_t) override {
    switch (place_) {
      case Place::kRest:
        if (InModel("vocab")) {
          out_.vocabulary_is_list = true;
          place_ = Place::kVocabularyList;
          return true;
        }
        if (InModel("merges")) {
          place_ = Place::kMerges;
          return true;
        }
        return Open(Json::array());
      case Place::kVocabularyList:
        place_ = Place::kPair;
        pair_size_ = 0;
        return true;
      case Place::kMerges:
        place_ = Place::kMerge;
        pair_size_ = 0;
        return true;
      default:
        return Refuse("a list");
    }
  }

  bool end_array() override {
    switch (place_) {
      case Place::kPair:
      case Place::kMerge:
        if (pair_size_ != 2) {
          return Refuse("a list that is no pair");
        }
        place_ = place_ == Place::kPair ? Place::kVocabularyList : Place::kMerges;
        return true;
      case Place::kVocabularyList:
      case Place::kMerges:
        place_ = Place::kRest;
        return true;
      default:
        return Close();
    }
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    size_t line = 1;
    size_t column = 1;
    for (size_t i = 0; i + 1 < position && i < text_.size(); ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n' ? 1 : 0;
    }
    error_ = MakeError(ErrorCode::kCorruptData, "[text.tokenizer_file] {}:{}:{}: not valid JSON",
                       source_, line, column);
    return false;
  }

  Result<TokenizerFile> Take() {
    if (error_.has_value()) {
      return *std::move(error_);
    }
    return std::move(out_);
  }

 private:
  enum class Place { kRest, kVocabularyMap, kVocabularyList, kPair, kMerges, kMerge };

  struct Level {
    Json value;
    std::string key;  // of the member that comes next
  };

  // Whether the value that begins now is the member `name` of the model.
  bool InModel(std::string_view name) const {
    return stack_.size() == 2 && stack_[0].key == "model" && stack_[1].value.is_object() &&
           stack_[1].key == name;
  }

  bool Open(Json value) {
    if (stack_.size() >= kMaxDepth) {
      return Refuse("deeper nesting than 64 levels");
    }
    stack_.push_back({std::move(value), ""});
    return true;
  }

  bool Close() {
    Json value = std::move(stack_.back().value);
    stack_.pop_back();
    return Value(std::move(value));
  }

  bool Value(Json value) {
    if (place_ != Place::kRest) {
      return Refuse("a value");
    }
    if (stack_.empty()) {
      out_.rest = std::move(value);
    } else if (stack_.back().value.is_array()) {
      stack_.back().value.push_back(std::move(value));
    } else {
      stack_.back().value[stack_.back().key] = std::move(value);
    }
    return true;
  }

  bool Number(double number, Json value) {
    if (place_ == Place::kVocabularyMap) {
      if (!(number >= 0 && number < kMaxTokens) || number != static_cast<int32_t>(number)) {
        return Refuse(fmt::format("id {}", number));
      }
      out_.vocabulary.back().second = static_cast<int32_t>(number);
      return true;
    }
    if (place_ == Place::kPair && pair_size_ == 1) {
      out_.vocabulary.back().second = static_cast<int32_t>(out_.vocabulary.size() - 1);
      out_.scores.push_back(number);
      ++pair_size_;
      return true;
    }
    return place_ == Place::kRest ? Value(std::move(value)) : Refuse("a number");
  }

  bool AddMerge(const std::string& line) {
    if (line.starts_with("#version")) {
      return true;
    }
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      return Refuse(fmt::format("merge \"{}\"", line));
    }
    out_.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    return true;
  }

  bool Refuse(std::string_view what) {
    const char* where = "the file";
    const char* wanted = "members of tokenizer.json";
    if (place_ == Place::kVocabularyMap) {
      where = "model.vocab";
      wanted = "ids from 0 to 4194303";
    } else if (place_ == Place::kVocabularyList || place_ == Place::kPair) {
      where = "model.vocab";
      wanted = "pairs of a text and a score";
    } else if (place_ == Place::kMerges || place_ == Place::kMerge) {
      where = "model.merges";
      wanted = "pairs of two texts, or one text with a single space";
    }
    error_ = MakeError(ErrorCode::kCorruptData, "[text.tokenizer_file] {}: {}: got {}, wanted {}",
                       source_, where, what, wanted);
    return false;
  }

  const std::string_view text_;
  const std::string& source_;
  TokenizerFile out_;
  std::vector<Level> stack_;
  Place place_ = Place::kRest;
  int pair_size_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<TokenizerFile> ParseTokenizerFile(std::string_view text, const std::string& source) {
  Handler handler(text, source);
  try {
    (void)Json::sax_parse(text, &handler);
  } catch (const Json::exception& e) {
    return MakeError(ErrorCode::kCorruptData, "[text.tokenizer_file] {}: not valid JSON ({})",
                     source, e.what());
  }
  return handler.Take();
}

}  // namespace penstock::text
