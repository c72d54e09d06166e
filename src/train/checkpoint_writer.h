// Writes a checkpoint beside training: a thread per rank writes its tensors, rank 0's thread then
// waits for the other ranks' files, adds the rest and gives the folder its name. No rank's program
// takes part, so a checkpoint is whole as soon as its bytes are on the disk.
//
// The ranks' threads hear of each other by the folder itself: each that is not rank 0 leaves a note
// there, FOLDER/.partial-STEP/.written-00003, with the names and checksums of its files.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "train/checkpoint.h"

namespace penstock::train {

// One file of a rank.
struct CheckpointPart {
  std::string name;
  std::vector<CheckpointTensor> tensors;
};

// What rank 0 does beside writing its own files.
struct CheckpointCommit {
  CheckpointManifest manifest;                                   // without files
  std::vector<std::pair<std::string, std::string>> small_files;  // name, content
  std::vector<int32_t> others;                                   // ranks whose notes are awaited
  std::vector<int64_t> replaced;  // checkpoints of an earlier run, which go once this one is there
};

struct CheckpointJob {
  std::string folder;  // of the checkpoints
  int64_t step = 0;
  int32_t rank = 0;
  std::vector<CheckpointPart> parts;       // their tensors must not change until it is Finished
  std::optional<CheckpointCommit> commit;  // rank 0
};

// Not thread-safe: one owner.
class CheckpointWriter {
 public:
  CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  // Gives up what has not got its name and waits for no other rank.
  ~CheckpointWriter();

  // `hold`: the folder does not get its name before Release. REQUIRES: not busy, the partial folder
  // is there.
  void Start(CheckpointJob job, bool hold);
  void Release();

  bool busy() const { return thread_.joinable(); }

  // This rank's tensors are on the disk (or failed): they may change.
  bool Written() const;
  // The thread has ended: Wait returns at once. Of rank 0 this means that the checkpoint is whole.
  bool Finished() const;
  // The other ranks say that theirs are written: their notes that are not seen within
  // `seconds` from now are an error (a folder that the ranks do not share).
  void ExpectNotes(double seconds);

  // Errors: kInvalidArgument naming the file and the system's reason (a full disk), or the note
  // that did not come. REQUIRES: busy.
  Result<> Wait();

 private:
  struct Shared;
  static Result<> Run(const CheckpointJob& job, Shared& shared);
  static Result<std::vector<CheckpointFile>> AwaitNote(const CheckpointJob& job, int32_t rank,
                                                       Shared& shared);

  std::thread thread_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace penstock::train
