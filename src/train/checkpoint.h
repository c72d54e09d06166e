// Checkpoints: a folder per step, written whole or not at all.
//
//   FOLDER/step-00000020/
//     checkpoint.json                     step, data cursor, seed, identity, files with checksums
//     config.json, tokenizer.json, ...    so that the folder is a model in Hugging Face layout
//     model.safetensors.index.json
//     model-00001-of-00002.safetensors    float32 master weights by global names, one file per rank
//     optimizer-00001-of-00002.safetensors  moments: NAME.exp_avg and NAME.exp_avg_sq, of replicas
//                                         NAME.exp_avg[begin:end]
//
// Each rank writes its files into FOLDER/.partial-STEP beside training and syncs them; then rank 0
// writes the rest, syncs, renames the folder and syncs FOLDER (checkpoint_writer.h). So a folder
// with its final name is complete, whenever a process is killed. Names are global: any number of
// ranks, any cut and any schedule reads what another one wrote.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "train/optimizer.h"
#include "weights/stored_tensor.h"

namespace penstock::train {

struct CheckpointFile {
  std::string name;
  int64_t bytes = 0;
  std::string sha256;
};

struct CheckpointManifest {
  int64_t step = 0;
  int64_t cursor = 0;  // sequences taken
  uint64_t seed = 0;   // key of shuffling and dropout; counters follow from step and cursor
  std::string identity;
  std::string instruction_set;
  std::string config;  // text of the configuration's path and sections that the run had
  std::vector<CheckpointFile> files;
};

// One tensor to write.
struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::span<const float> values;
};

// Writes a safetensors file of float32 tensors and syncs it. Errors: kInvalidArgument naming the
// file and the system's reason (a full disk).
Result<CheckpointFile> WriteTensors(const std::string& folder, const std::string& name,
                                    const std::vector<CheckpointTensor>& tensors);

// Writes a small file and syncs it. Errors as WriteTensors.
Result<CheckpointFile> WriteSmallFile(const std::string& folder, const std::string& name,
                                      std::string_view content);

std::string CheckpointName(int64_t step);  // "step-00000020"
std::string PartialFolder(const std::string& folder, int64_t step);

Result<> MakeFolder(const std::string& folder);
// Removes what killed runs left half written.
Result<> PrepareFolder(const std::string& folder);
// Makes FOLDER/.partial-STEP.
Result<> MakePartial(const std::string& folder, int64_t step);
void RemovePartial(const std::string& folder, int64_t step);

// One run at a time writes into a folder: held until destroyed, or the process ends however it
// does.
class FolderLock {
 public:
  FolderLock() = default;

  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

  // Errors: kInvalidArgument when another run has it. File systems without locks give none.
  static Result<FolderLock> Take(const std::string& folder);

 private:
  int fd_ = -1;
};

// Steps that have a folder with a final name, ascending.
std::vector<int64_t> CheckpointSteps(const std::string& folder);

// checkpoint.json into the partial folder, then the rename.
Result<> CommitCheckpoint(const std::string& folder, const CheckpointManifest& manifest);

void RemoveCheckpoint(const std::string& folder, int64_t step);

// Weights that the step after them can't be run with are no checkpoint to go on from: the folder
// gets the name that is returned, which nothing looks for. Empty: there is none, or it can't be
// renamed.
std::string SetCheckpointAside(const std::string& folder, int64_t step);

// A checkpoint opened for reading.
class Checkpoint {
 public:
  // `path` is a step's folder. `verify`: all files are read and their checksums compared. Errors:
  // kCorruptData naming the file and what is wrong with it.
  static Result<Checkpoint> Open(const std::string& path, bool verify);

  const CheckpointManifest& manifest() const { return manifest_; }

  const std::string& path() const { return path_; }

  // Names of the weights, ascending.
  std::vector<std::string> Names() const;
  const std::vector<int64_t>* Shape(const std::string& name) const;

  // A view of a weight's values in the mapped file. Errors: kNotFound, kCorruptData (another size).
  Result<std::span<const float>> Weight(const std::string& name, int64_t elements) const;
  // Elements [begin, begin + out.size()) of a moment, from however many parts. `kind`: "exp_avg" or
  // "exp_avg_sq". Errors as Weight.
  Result<> Moment(const std::string& name, const std::string& kind, int64_t begin,
                  std::span<float> out) const;

 private:
  struct Piece {
    int64_t begin = 0;
    std::span<const float> values;
  };

  Result<> AddFile(const std::string& name);

  std::string path_;
  CheckpointManifest manifest_;
  std::vector<std::shared_ptr<const weights::FileBytes>> files_;
  std::map<std::string, std::pair<std::vector<int64_t>, std::span<const float>>> weights_;
  std::map<std::string, std::vector<Piece>> moments_;  // "NAME.exp_avg"
};

struct FoundCheckpoint {
  std::optional<int64_t> step;       // of the newest whole one; nothing where there is none at all
  std::vector<std::string> damaged;  // what is wrong with newer ones
};

// Errors: kCorruptData when there are checkpoints and none is whole.
Result<FoundCheckpoint> FindCheckpoint(const std::string& folder);

}  // namespace penstock::train
