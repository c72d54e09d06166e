// A few metadata keys of a GGUF v3 file, for tests in this folder (which may not include weights/).

#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "text/gguf_vocabulary.h"

namespace penstock::text {

class GgufFileForTest {
 public:
  // REQUIRES: a good file.
  explicit GgufFileForTest(const std::string& path) : file_(MappedFile::Open(path).value()) {
    at_ = 16;  // magic, version, number of tensors
    const auto count = Read<uint64_t>();
    for (uint64_t i = 0; i < count; ++i) {
      const std::string key = ReadString();
      ReadValue(key, Read<uint32_t>());
    }
  }

  std::map<std::string, std::string> strings;
  std::map<std::string, int64_t> numbers;
  std::map<std::string, std::vector<std::string>> string_lists;
  std::map<std::string, std::vector<int32_t>> int_lists;

  GgufVocabulary Vocabulary() const {
    GgufVocabulary vocabulary;
    const std::string prefix = "tokenizer.ggml.";
    vocabulary.architecture = strings.at("general.architecture");
    vocabulary.model = strings.at(prefix + "model");
    vocabulary.pre = strings.at(prefix + "pre");
    vocabulary.tokens = string_lists.at(prefix + "tokens");
    vocabulary.merges = string_lists.at(prefix + "merges");
    vocabulary.token_types = int_lists.at(prefix + "token_type");
    vocabulary.bos_id = static_cast<int32_t>(numbers.at(prefix + "bos_token_id"));
    vocabulary.eos_id = static_cast<int32_t>(numbers.at(prefix + "eos_token_id"));
    vocabulary.add_bos = numbers.at(prefix + "add_bos_token") != 0;
    return vocabulary;
  }

 private:
  template <class T>
  T Read() {
    T value;
    std::memcpy(&value, file_.bytes().data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string ReadString() {
    const auto length = Read<uint64_t>();
    std::string text(reinterpret_cast<const char*>(file_.bytes().data()) + at_, length);
    at_ += length;
    return text;
  }

  void ReadValue(const std::string& key, uint32_t type) {
    constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) {
      strings[key] = ReadString();
    } else if (type == 9) {
      const auto item = Read<uint32_t>();
      const auto count = Read<uint64_t>();
      for (uint64_t i = 0; i < count; ++i) {
        if (item == 8) {
          string_lists[key].push_back(ReadString());
        } else if (item == 5) {
          int_lists[key].push_back(Read<int32_t>());
        } else {
          at_ += kSizes[item];
        }
      }
    } else {
      int64_t value = 0;
      std::memcpy(&value, file_.bytes().data() + at_, kSizes[type]);
      numbers[key] = value;
      at_ += kSizes[type];
    }
  }

  MappedFile file_;
  size_t at_ = 0;
};

}  // namespace penstock::text
