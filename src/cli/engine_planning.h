// What planning needs to know of the engine: how it would hold a model's matrices, what its arenas
// would take, and what a run is foretold on the calibrated machine.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "comm/channel.h"
#include "cost/profile.h"
#include "hw/system.h"
#include "plan/context.h"
#include "plan/serving_sim.h"
#include "serve/engine.h"

namespace penstock::cli {

// Where `calibrate` writes and where `run` and `bench` look: $PENSTOCK_SYSTEM, else
// penstock/system.toml in $XDG_CONFIG_HOME, else in ~/.config. "" where there is no home.
std::string CalibratedPath();

// Types of the matrices under `rule`; with a device also the bytes that packing gives.
cost::HeldTensors HeldBy(const model::Graph& graph, const runtime::WeightRule& rule,
                         const kernels::Device* device);

// The type that most of the matrices' elements are held in.
hw::Precision MainPrecision(const model::Graph& graph, const runtime::WeightRule& rule);

// The account of the engine's arenas for any layout of this model, from its headers. `prompt` and
// `output` tokens per sequence. The bundle and the device must outlive it.
plan::EngineMemory ArenasOf(const serve::ModelBundle& bundle, const kernels::Device& device,
                            int64_t prompt, int64_t output, bool across_processes);

// What a byte that crosses a boundary weighs against the layers' work when a cut is chosen.
struct CrossingWeight {
  double work_per_byte = 0;  // 0: as on common machines
  std::string system;        // the calibrated system file that it is from; empty: none
};

// From the calibrated system file, where there is one for this machine's instruction set: of
// running a model whose matrices are held as `weights`, and of training.
CrossingWeight DecodeCrossing(hw::Precision weights, bool across_processes);
CrossingWeight TrainCrossing(bool across_processes);

// Rank 0's weight on every rank, so that all cut alike whatever their machines know. `channel` is
// null without MPI. Errors: those of the channel.
Result<CrossingWeight> AgreeOnCrossing(comm::Channel* channel, CrossingWeight own,
                                       double deadline_s);

struct Foretold {
  std::optional<plan::ServingForecast> forecast;
  std::string system;  // the file
  std::string why;     // there is none
};

// Before a run starts: from the calibrated system file, if there is one for this instruction set.
Foretold Foretell(const serve::ModelBundle& bundle, const serve::Engine& engine,
                  const std::vector<plan::Request>& requests);

// "planned" of run and bench.
Json ForetoldJson(const Foretold& foretold);

}  // namespace penstock::cli
