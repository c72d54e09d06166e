#include "schedule/registry.h"

#include <array>
#include <vector>

#include "base/units.h"
#include "schedule/generators/generators.h"

namespace penstock::schedule {
namespace {

using enum PlacementKind;

constexpr std::array<GeneratorInfo, 17> kGenerators = {{
    {"gpipe", "all forwards, then all backwards", kLoop, 1, true, 1, true, MakeGpipe},
    {"1f1b", "forward and backward in turn after a warm-up", kLoop, 1, false, 1, true,
     MakeOneForwardOneBackward},
    {"interleaved-1f1b", "1F1B over several chunks per rank", kLoop, 2, true, 1, true,
     MakeInterleaved},
    {"looped-bfs", "breadth first: every micro-batch of a chunk before the next chunk", kLoop, 2,
     true, 1, true, MakeLoopedBfs},
    {"zb-h1", "1F1B with the backward split, no more memory", kLoop, 1, false, 1, true,
     MakeZeroBubbleH1},
    {"zb-h2", "zero bubble between steps for twice the memory", kLoop, 1, false, 1, true,
     MakeZeroBubbleH2},
    {"interleaved-zb", "interleaved 1F1B with the backward split", kLoop, 2, true, 1, true,
     MakeInterleavedZeroBubble},
    {"zb-v", "zero bubble between steps at the memory of 1F1B, two stages per rank in a V", kV, 2,
     false, 1, true, MakeZeroBubbleV},
    {"v-half", "half the activations of 1F1B", kV, 2, false, 1, true, MakeVHalf},
    {"v-min", "a third of the activations of 1F1B", kV, 2, false, 1, true, MakeVMin},
    {"dualpipe", "two directions over two copies of the weights, forward and backward overlapped",
     kMirrored, 1, false, 1, true, MakeDualPipe},
    {"dualpipe-v", "DualPipe on a V with one copy of the weights", kV, 2, false, 1, true,
     MakeDualPipeV},
    {"sliced-1f1b", "1F1B over slices of each sequence", kLoop, 1, false, 2, true, MakeSliced},
    {"hanayo", "1F1B on waves: chunks placed in zig-zag", kWave, 2, true, 1, true, MakeHanayo},
    {"chimera", "two 1F1B streams in opposite directions over two copies of the weights", kMirrored,
     1, false, 1, true, MakeChimera},
    {"forward", "forward only", kLoop, 1, true, 1, false, MakeForward},
    {"decode-ring", "decoding: m groups circulate, one lap per step", kLoop, 1, true, 1, false,
     MakeDecodeRing},
}};

Error Refuse(std::string_view what, int64_t got, std::string_view wanted) {
  return MakeError(ErrorCode::kInvalidArgument, "[schedule.generate] {} {}, wanted {}", what, got,
                   wanted);
}

std::string NamesWithChunks() {
  std::string names;
  for (const GeneratorInfo& info : kGenerators) {
    if (info.any_chunks)
      names += (names.empty() ? "" : ", ") + std::string(info.name);
  }
  return names;
}

Result<GeneratorOptions> CheckOptions(const GeneratorInfo& info, GeneratorOptions options) {
  if (options.ranks < 1)
    return Refuse("ranks", options.ranks, "at least 1");
  if (options.micro_batches < 1)
    return Refuse("micro-batches", options.micro_batches, "at least 1");
  if (options.chunks < 0)
    return Refuse("chunks", options.chunks, "at least 1");
  if (options.slices < 0)
    return Refuse("slices", options.slices, "at least 1");
  if (options.chunks == 0)
    options.chunks = info.default_chunks;
  if (options.slices == 0)
    options.slices = info.default_slices;
  if (!info.any_chunks && options.chunks != info.default_chunks) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[schedule.generate] {} with {} chunks per rank, wanted {}\nany number of chunks: {}",
        info.name, options.chunks, info.default_chunks, NamesWithChunks());
  }
  if (info.default_slices == 1 && options.slices != 1) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[schedule.generate] {} with {} slices, wanted 1\nsequence slices: sliced-1f1b", info.name,
        options.slices);
  }
  const int64_t stages = int64_t{options.ranks} * options.chunks;
  if (stages > kMaxStages)
    return Refuse("stages (ranks x chunks)", stages, fmt::format("at most {}", kMaxStages));
  if (options.slices > 65535)
    return Refuse("slices", options.slices, "at most 65535");
  const int64_t cells = stages * options.micro_batches;
  if (cells > kMaxGenerated || cells * options.slices > kMaxGenerated) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[schedule.generate] {} stages x {} micro-batches x {} slices, wanted a "
                     "product of at most {}",
                     stages, options.micro_batches, options.slices, kMaxGenerated);
  }
  return options;
}

}  // namespace

std::span<const GeneratorInfo> Generators() {
  return kGenerators;
}

const GeneratorInfo* FindGenerator(std::string_view name) {
  for (const GeneratorInfo& info : kGenerators) {
    if (info.name == name)
      return &info;
  }
  return nullptr;
}

Result<Schedule> Generate(std::string_view name, const GeneratorOptions& options) {
  const GeneratorInfo* info = FindGenerator(name);
  if (info == nullptr) {
    std::vector<std::string_view> names;
    for (const GeneratorInfo& known : kGenerators)
      names.push_back(known.name);
    const std::string near = NearestName(name, names);
    return MakeError(ErrorCode::kInvalidArgument,
                     "[schedule.generate] no schedule is called '{}', wanted one of {}{}", name,
                     fmt::join(names, ", "),
                     near.empty() ? "" : fmt::format("\ndid you mean {}?", near));
  }
  PENSTOCK_TRY_ASSIGN(const GeneratorOptions full, CheckOptions(*info, options));
  return info->make(full);
}

Schedule StartSchedule(std::string_view name, const GeneratorOptions& options,
                       Placement placement) {
  Schedule schedule;
  schedule.name = std::string(name);
  schedule.micro_batches = options.micro_batches;
  schedule.slices = options.slices;
  schedule.placement = std::move(placement);
  schedule.ranks.resize(static_cast<size_t>(options.ranks));
  return schedule;
}

}  // namespace penstock::schedule
