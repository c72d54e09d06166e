#include "cli/npy_file.h"

#include <cstdio>

#include "base/file.h"

namespace penstock::cli {

Result<> WriteNpy(const std::string& path, std::span<const float> values, int64_t rows,
                  int64_t columns) {
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  constexpr size_t kPreamble = 10;
  header.append(63 - (kPreamble + header.size()) % 64, ' ');
  header += '\n';
  std::string content = "\x93NUMPY";
  content += '\x01';
  content += '\0';
  content += static_cast<char>(header.size() & 0xFF);
  content += static_cast<char>(header.size() >> 8);
  content += header;
  content.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  if (path == "-") {
    std::fwrite(content.data(), 1, content.size(), stdout);
    std::fflush(stdout);
    return {};
  }
  return WriteFileAtomically(path, content);
}

}  // namespace penstock::cli
