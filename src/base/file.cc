#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace penstock {
namespace {

// Closes the descriptor when it goes out of scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }

  int get() const { return fd_; }

 private:
  int fd_;
};

Error NotFound(const std::string& path, int code) {
  return MakeError(ErrorCode::kNotFound, "[base.file] {}: {}", path, std::strerror(code));
}

// What a full or failing disk says: not the user's mistake.
Error WriteFailed(const std::string& path, int code) {
  return MakeError(ErrorCode::kInternal, "[base.file] {}: writing failed: {}", path,
                   std::strerror(code));
}

Result<> WriteAll(int fd, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t count = ::write(fd, content.data(), content.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return WriteFailed(path, errno);
    }
    content.remove_prefix(static_cast<size_t>(count));
  }
  return {};
}

// True when something is there that is neither a file nor a folder.
Result<bool> IsDevice(const std::string& path) {
  struct stat info {};

  if (::stat(path.c_str(), &info) != 0) {
    return false;
  }
  if (S_ISDIR(info.st_mode)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[base.file] {}: is a folder, wanted the name of a file to write", path);
  }
  return !S_ISREG(info.st_mode);
}

Error NotWritable(const std::string& path, int code) {
  return MakeError(ErrorCode::kNotFound,
                   "[base.file] {}: can't be written ({}), wanted a file in a folder that exists "
                   "and can be written",
                   path, std::strerror(code));
}

// Where links lead, which may be nothing yet.
Result<std::string> EndOfLinks(const std::string& path) {
  constexpr int kMostLinks = 40;
  std::filesystem::path target = path;
  std::error_code code;
  for (int links = 0; std::filesystem::is_symlink(target, code); ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, code);
    if (code || links == kMostLinks) {
      return NotWritable(path, code ? code.value() : ELOOP);
    }
    target = target.parent_path() / next;  // `next` alone where it begins at the root
  }
  return target.string();
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // Without O_NONBLOCK opening a pipe would wait for somebody who writes.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) {
    return NotFound(path, errno);
  }

  struct stat info {};

  if (::fstat(fd.get(), &info) != 0) {
    return NotFound(path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return MakeError(ErrorCode::kNotFound, "[base.file] {}: not a regular file", path);
  }
  if (info.st_size == 0) {
    return MakeError(ErrorCode::kCorruptData, "[base.file] {}: the file is empty", path);
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return NotFound(path, errno);
  }
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void MappedFile::DropPages(size_t offset, size_t length) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = std::min(offset + length, size_) / page * page;
  if (begin < end) {
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
  }
}

void MappedFile::Prefetch(size_t offset, size_t length) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  const size_t end = std::min(offset + length, size_);
  if (begin < end) {
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
  }
}

Result<std::string> ReadFile(const std::string& path, size_t limit_bytes) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    return NotFound(path, errno);
  }
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return NotFound(path, errno);
    }
    if (count == 0) {
      return content;
    }
    if (content.size() + static_cast<size_t>(count) > limit_bytes) {
      return MakeError(ErrorCode::kInvalidArgument, "[base.file] {}: larger than {} bytes", path,
                       limit_bytes);
    }
    content.append(buffer, static_cast<size_t>(count));
  }
}

Result<> CheckWritable(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const bool device, IsDevice(path));
  const std::string checked = device ? path : FolderOf(path);
  if (path.empty() || ::access(checked.c_str(), W_OK) != 0) {
    return NotWritable(path, path.empty() ? ENOENT : errno);
  }
  return {};
}

Result<> WriteFileAtomically(const std::string& path, std::string_view content) {
  PENSTOCK_TRY_ASSIGN(const bool device, IsDevice(path));
  if (device) {
    const Descriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return fd.get() < 0 ? Result<>(NotWritable(path, errno)) : WriteAll(fd.get(), path, content);
  }
  PENSTOCK_TRY_ASSIGN(const std::string target, EndOfLinks(path));
  const std::string temporary = fmt::format("{}.{}.tmp", target, ::getpid());
  {
    const Descriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fd.get() < 0) {
      return NotWritable(path, errno);
    }
    if (Result<> written = WriteAll(fd.get(), path, content); !written.ok()) {
      ::unlink(temporary.c_str());
      return written;
    }
  }
  if (::rename(temporary.c_str(), target.c_str()) != 0) {
    const Error error = NotWritable(path, errno);
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

bool FileExists(const std::string& path) {
  std::error_code code;
  return std::filesystem::exists(path, code);
}

bool IsFolder(const std::string& path) {
  std::error_code code;
  return std::filesystem::is_directory(path, code);
}

}  // namespace penstock
