#include "train/checkpoint_writer.h"

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "base/file.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(5);
constexpr size_t kMaxNote = size_t{1} << 20;

std::string NotePath(const CheckpointJob& job, int32_t rank) {
  return (fs::path(PartialFolder(job.folder, job.step)) / fmt::format(".written-{:05d}", rank))
      .string();
}

// A line per file: bytes, checksum, name.
std::string NoteOf(const std::vector<CheckpointFile>& files) {
  std::string note;
  for (const CheckpointFile& file : files) {
    note += fmt::format("{} {} {}\n", file.bytes, file.sha256, file.name);
  }
  return note;
}

Result<std::vector<CheckpointFile>> ParseNote(const std::string& path, std::string_view note) {
  std::vector<CheckpointFile> files;
  while (!note.empty()) {
    const size_t end = std::min(note.find('\n'), note.size());
    const std::string_view line = note.substr(0, end);
    note.remove_prefix(std::min(end + 1, note.size()));
    const size_t a = line.find(' ');
    const size_t b = a == std::string_view::npos ? a : line.find(' ', a + 1);
    CheckpointFile file;
    if (b == std::string_view::npos ||
        std::from_chars(line.data(), line.data() + a, file.bytes).ptr != line.data() + a) {
      return MakeError(ErrorCode::kCorruptData,
                       "[train.checkpoint] {}: got the line '{}', wanted bytes, checksum and name",
                       path, line);
    }
    file.sha256 = std::string(line.substr(a + 1, b - a - 1));
    file.name = std::string(line.substr(b + 1));
    files.push_back(std::move(file));
  }
  return files;
}

Error GivenUp() {
  return MakeError(ErrorCode::kInterrupted, "[train.checkpoint] given up");
}

}  // namespace

struct CheckpointWriter::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;
  bool given_up = false;
  bool written = false;
  bool finished = false;
  std::optional<Clock::time_point> notes_until;
  std::optional<Result<>> result;

  // Waits a little. False when the owner has given up.
  bool Pause() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kLook, [this] { return given_up; });
    return !given_up;
  }

  bool AwaitRelease() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return given_up || !held; });
    return !given_up;
  }

  bool NotesAreLate() {
    const std::lock_guard lock(mutex);
    return notes_until.has_value() && Clock::now() > *notes_until;
  }

  template <class Change>
  void Set(const Change& change) {
    const std::lock_guard lock(mutex);
    change(*this);
    changed.notify_all();
  }
};

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) {
    shared_->Set([](Shared& s) { s.given_up = true; });
    thread_.join();
  }
}

void CheckpointWriter::Start(CheckpointJob job, bool hold) {
  PENSTOCK_CHECK(!busy(), "one checkpoint is written at a time");
  shared_ = std::make_shared<Shared>();
  shared_->held = hold;
  thread_ = std::thread([shared = shared_, job = std::move(job)] {
    Result<> result = Run(job, *shared);
    shared->Set([&result](Shared& s) {
      s.result.emplace(std::move(result));
      s.written = true;
      s.finished = true;
    });
  });
}

Result<> CheckpointWriter::Run(const CheckpointJob& job, Shared& shared) {
  const std::string partial = PartialFolder(job.folder, job.step);
  std::vector<CheckpointFile> files;
  for (const CheckpointPart& part : job.parts) {
    PENSTOCK_TRY_ASSIGN(CheckpointFile file, WriteTensors(partial, part.name, part.tensors));
    files.push_back(std::move(file));
  }
  shared.Set([](Shared& s) { s.written = true; });
  if (!job.commit.has_value()) {
    return WriteFileAtomically(NotePath(job, job.rank), NoteOf(files));
  }
  CheckpointManifest manifest = job.commit->manifest;
  manifest.files = std::move(files);
  for (const int32_t other : job.commit->others) {
    PENSTOCK_TRY_ASSIGN(const std::vector<CheckpointFile> theirs, AwaitNote(job, other, shared));
    manifest.files.insert(manifest.files.end(), theirs.begin(), theirs.end());
    std::error_code code;
    fs::remove(NotePath(job, other), code);
  }
  for (const auto& [name, content] : job.commit->small_files) {
    PENSTOCK_TRY_ASSIGN(CheckpointFile file, WriteSmallFile(partial, name, content));
    manifest.files.push_back(std::move(file));
  }
  if (!shared.AwaitRelease()) {
    return GivenUp();
  }
  PENSTOCK_TRY(CommitCheckpoint(job.folder, manifest));
  for (const int64_t step : job.commit->replaced) {
    if (step != job.step) {
      RemoveCheckpoint(job.folder, step);
    }
  }
  return {};
}

Result<std::vector<CheckpointFile>> CheckpointWriter::AwaitNote(const CheckpointJob& job,
                                                                int32_t rank, Shared& shared) {
  const std::string path = NotePath(job, rank);
  while (true) {
    const bool late = shared.NotesAreLate();
    std::error_code code;
    if (fs::exists(path, code)) {
      PENSTOCK_TRY_ASSIGN(const std::string note, ReadFile(path, kMaxNote));
      return ParseNote(path, note);
    }
    if (late) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[train.checkpoint] rank {} has written its part, but {} is not there, "
                       "wanted a train.folder that all ranks share",
                       rank, path);
    }
    if (!shared.Pause()) {
      return GivenUp();
    }
  }
}

void CheckpointWriter::Release() {
  if (shared_ != nullptr) {
    shared_->Set([](Shared& s) { s.held = false; });
  }
}

bool CheckpointWriter::Written() const {
  if (shared_ == nullptr) {
    return false;
  }
  const std::lock_guard lock(shared_->mutex);
  return shared_->written;
}

bool CheckpointWriter::Finished() const {
  if (shared_ == nullptr) {
    return false;
  }
  const std::lock_guard lock(shared_->mutex);
  return shared_->finished;
}

void CheckpointWriter::ExpectNotes(double seconds) {
  if (shared_ != nullptr) {
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(seconds));
    shared_->Set([until](Shared& s) { s.notes_until = s.notes_until.value_or(until); });
  }
}

Result<> CheckpointWriter::Wait() {
  PENSTOCK_CHECK(busy(), "a checkpoint is being written");
  thread_.join();
  return std::move(*shared_->result);
}

}  // namespace penstock::train
