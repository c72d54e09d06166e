#include "cli/train_flags.h"

#include "base/config_path.h"
#include "base/file.h"
#include "cli/engine_planning.h"
#include "cli/model_flags.h"

namespace penstock::cli {

void AddTrainFlags(Verb& verb, TrainFlags& flags) {
  AddCommonFlags(verb, flags.common);
  verb.AddOption(
          "config", flags.config,
          "The configuration (docs/training.md lists its keys), or one of configs/train by name")
      ->TypeName("CONFIG.toml");
  verb.AddOption("--set", flags.assignments, "section.key=value instead of what the file says")
      ->TypeName("KEY=VALUE");
  verb.Heading("Run");
  AddInteger(verb, "--threads", flags.threads, "Threads per stage (default: cores / stages)", 1,
             4096)
      ->TypeName("N");
  verb.AddOption("--memory", flags.memory,
                 "Bytes that each rank may use, for instance 2GiB (default: what is available, "
                 "divided by the "
                 "ranks of this machine)")
      ->TypeName("BYTES");
  verb.AddOption("--deadline", flags.deadline_s,
                 "Seconds that a stage waits for another before the run fails")
      ->TypeName("S")
      ->ShowDefault();
}

Result<train::TrainConfig> ReadConfig(const TrainFlags& flags) {
  // --set takes every word behind it, so the file may be among them.
  std::string path = flags.config;
  std::vector<std::string> assignments;
  for (const std::string& word : flags.assignments) {
    if (path.empty() && word.find('=') == std::string::npos) {
      path = word;
    } else {
      assignments.push_back(word);
    }
  }
  if (path.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.flags] no configuration, wanted a file, for instance "
                     "configs/train/tiny.toml");
  }
  if (!FileExists(path) && path.find('/') == std::string::npos && !path.ends_with(".toml")) {
    PENSTOCK_TRY_ASSIGN(path, FindConfig("train", "toml", path));  // one that came with Penstock
  }
  return train::ReadTrainConfig(path, assignments);
}

Result<train::TrainOptions> ToTrainOptions(const TrainFlags& flags) {
  train::TrainOptions options;
  options.threads = static_cast<int>(flags.threads);
  PENSTOCK_TRY_ASSIGN(options.memory_bytes, ReadMemoryLimit(flags.memory));
  PENSTOCK_TRY_ASSIGN(options.deadline_s, ReadDeadline(flags.deadline_s));
  return options;
}

Result<> WeighCrossing(const train::TrainConfig& config, comm::Channel* channel,
                       train::TrainOptions& options) {
  if (!config.pipeline.cut.empty()) {
    return {};
  }
  CrossingWeight own;
  if (channel == nullptr || channel->rank() == 0) {
    own = TrainCrossing(channel != nullptr);
  }
  PENSTOCK_TRY_ASSIGN(const CrossingWeight crossing,
                      AgreeOnCrossing(channel, own, StartDeadline(options.deadline_s)));
  options.work_per_byte = crossing.work_per_byte;
  options.links_from = crossing.system;
  return {};
}

}  // namespace penstock::cli
