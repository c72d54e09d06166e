// Flags of every verb that runs a model, and the frame in which it runs: threads, or one process
// per rank under mpirun.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/verb.h"
#include "serve/engine.h"

namespace penstock::cli {

struct ModelFlags {
  CommonFlags common;
  std::string model;
  int64_t stages = 0;
  std::string cut;
  int64_t groups = 0;
  int64_t threads = 0;
  std::string weights = "auto";
  std::string kv = "auto";
  std::string latent_attention = "absorbed";
  int64_t context = 0;
  int64_t prefill_chunk = 0;
  std::string memory;
  double deadline_s = 30;
};

// An integer option that must lie within [low, high]; anything else is refused with both ends.
Flag* AddInteger(Verb& verb, const std::string& name, int64_t& value, const std::string& help,
                 int64_t low, int64_t high);

// Under the headings "Model", "Pipeline" and "Memory and time". For verbs with flags of their own
// in between: --json, --version and "Model" first, then the others.
void AddModelFlags(Verb& verb, ModelFlags& flags);
void AddModelSection(Verb& verb, ModelFlags& flags);
void AddPipelineSections(Verb& verb, ModelFlags& flags);

// Errors: kInvalidArgument naming the flag.
Result<serve::RunOptions> ToRunOptions(const ModelFlags& flags);

// `--memory` in bytes, more than 0; 0 where the flag is not given. Errors: kInvalidArgument.
Result<int64_t> ReadMemoryLimit(const std::string& text);

// `--deadline` in seconds, within 0.01 and a day: a wait without end is not offered. Errors:
// kInvalidArgument.
Result<double> ReadDeadline(double seconds);

// How long ranks that are started together wait for each other at the start and at the end: a
// little longer, since processes start apart. A deadline out of range (it is refused later) counts
// as 30 s.
double StartDeadline(double deadline_s);

// "1,2,3" or white space between. Errors: kInvalidArgument naming `what` and the bad part.
Result<std::vector<int32_t>> ParseIds(const std::string& text, const std::string& what);

// What a verb does on rank 0. `channel` is null without MPI.
using ModelBody =
    std::function<Result<>(const serve::ModelBundle& bundle, const serve::RunOptions& options,
                           std::unique_ptr<comm::Channel> channel)>;

// `channel` is null without MPI.
using RankedBody = std::function<Result<>(std::unique_ptr<comm::Channel> channel)>;

// Runs `body` on every rank, reports errors (rank 0 speaks first), ends all ranks when one fails or
// does not come within the deadline, and gives the exit status.
int RunRankedVerb(const Verb& verb, double deadline_s, const RankedBody& body);

// Opens the model, runs `body` on rank 0 (and the worker on the others), reports errors, gives the
// exit status. `runs`: how many engines `body` starts, one after the other, each but the first with
// a channel from NextChannel.
int RunModelVerb(const Verb& verb, const ModelFlags& flags, const ModelBody& body, int runs = 1);

// Rank 0's channel for the next run of a verb. Null without MPI.
Result<std::unique_ptr<comm::Channel>> NextChannel(const Verb& verb, double deadline_s);

// What a verb does on every rank. `channel` is null without MPI; `account` outlives it.
using RankBody = std::function<Result<>(comm::Channel* channel, MemoryAccount& account)>;

// Runs `body` on every rank of mpirun, or once; reports errors, gives the exit status.
int RunRankVerb(const Verb& verb, double deadline_s, const RankBody& body);

// Load progress on standard error, when that is a terminal.
serve::LoadProgress LoadProgressBar();

// Ends all ranks of MPI with this status, when the launcher has read what this one has said.
void AbortAll(int status);

// Set by Ctrl-C (and SIGTERM); a second Ctrl-C ends the process at once.
void CatchInterrupts();
bool Interrupted();
// As Ctrl-C does.
void Interrupt();
// The error of a verb that has no half result to print.
Error InterruptedError();

}  // namespace penstock::cli
