#include "cli/standard_input.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace penstock::cli {

Result<std::string> ReadStandardInput() {
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) {  // who watches for Ctrl-C ends the process
      continue;
    }
    if (count < 0) {
      return MakeError(ErrorCode::kNotFound, "[cli.input] standard input: {}",
                       std::strerror(errno));
    }
    if (count == 0) {
      return content;
    }
    content.append(buffer, static_cast<size_t>(count));
  }
}

}  // namespace penstock::cli
