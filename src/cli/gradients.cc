// penstock gradients: loss and gradients of one step, through any schedule, for comparison with
// other implementations.

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "base/json.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/engine_planning.h"
#include "cli/gradient_file.h"
#include "cli/model_flags.h"
#include "cli/schedule_input.h"
#include "cli/verbs.h"
#include "model/cut_search.h"
#include "runtime/bytes.h"
#include "runtime/gradient_run.h"
#include "schedule/registry.h"
#include "serve/control.h"
#include "train/setup.h"

namespace penstock::cli {
namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 31;

struct GradientFlags {
  CommonFlags common;
  std::string model;
  std::string tokens;
  std::string targets;
  int64_t stages = 0;
  std::string cut;
  std::string schedule = "1f1b";
  std::optional<int> micro_batches;
  std::optional<int> chunks;
  std::optional<int> slices;
  std::string weights = "f32";
  std::string recompute = "none";
  int64_t threads = 0;
  std::string memory;
  double deadline_s = 30;
  std::string output;
  double work_per_byte = 0;  // no flag: what crosses, weighed for the cut
};

using Sequences = std::vector<std::vector<int32_t>>;

// "1,2,3;4,5,6".
Result<Sequences> ParseSequences(const std::string& text, const std::string& flag,
                                 int64_t vocabulary) {
  Sequences sequences;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t end = std::min(text.find(';', at), text.size());
    PENSTOCK_TRY_ASSIGN(std::vector<int32_t> ids, ParseIds(text.substr(at, end - at), flag));
    if (ids.empty()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.gradients] {}: sequence {} is empty, wanted ids, for instance "
                       "1,2,3;4,5,6",
                       flag, sequences.size() + 1);
    }
    for (const int32_t id : ids) {
      if (id >= vocabulary) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "[cli.gradients] {}: sequence {} has {}, wanted ids below {} (the "
                         "vocabulary)",
                         flag, sequences.size() + 1, id, vocabulary);
      }
    }
    sequences.push_back(std::move(ids));
    at = end + 1;
  }
  return sequences;
}

// Targets of each sequence: those that were given, or the next ids.
Result<Sequences> TargetsOf(const GradientFlags& flags, const Sequences& tokens,
                            int64_t vocabulary) {
  if (!flags.targets.empty()) {
    PENSTOCK_TRY_ASSIGN(Sequences targets, ParseSequences(flags.targets, "--targets", vocabulary));
    if (targets.size() != tokens.size()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.gradients] --targets has {}, wanted {} as --tokens",
                       Counted(targets.size(), "sequence"), tokens.size());
    }
    for (size_t s = 0; s < tokens.size(); ++s) {
      if (targets[s].size() != tokens[s].size()) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "[cli.gradients] --targets: sequence {} has {}, wanted {} as --tokens",
                         s + 1, Counted(targets[s].size(), "id"), tokens[s].size());
      }
    }
    return targets;
  }
  Sequences targets;
  bool any = false;
  for (const std::vector<int32_t>& sequence : tokens) {
    targets.emplace_back(sequence.begin() + 1, sequence.end());
    targets.back().push_back(-1);
    any = any || sequence.size() > 1;
  }
  if (!any) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.gradients] --tokens: no sequence has a next token, wanted one of at "
                     "least 2 ids, or --targets");
  }
  return targets;
}

// Deals the sequences to micro-batches in order, as evenly as can be: the first ones get one more.
std::vector<runtime::MicroBatchData> Deal(const Sequences& tokens, const Sequences& targets,
                                          int micro_batches) {
  std::vector<runtime::MicroBatchData> batches(static_cast<size_t>(micro_batches));
  const size_t each = tokens.size() / batches.size();
  const size_t more = tokens.size() % batches.size();
  size_t s = 0;
  for (size_t j = 0; j < batches.size(); ++j) {
    runtime::MicroBatchData& batch = batches[j];
    batch.key = static_cast<uint32_t>(j);
    for (const size_t end = s + each + (j < more ? 1 : 0); s < end; ++s) {
      batch.tokens.insert(batch.tokens.end(), tokens[s].begin(), tokens[s].end());
      batch.targets.insert(batch.targets.end(), targets[s].begin(), targets[s].end());
      batch.sequences.push_back({static_cast<int64_t>(tokens[s].size()), 0});
    }
  }
  return batches;
}

// Ranks: --stages, else from --cut (stages over what the schedule puts on a rank), else those of
// mpirun, else 1.
Result<int> RanksOf(const GradientFlags& flags, const std::vector<int64_t>& cut, int mpi_ranks) {
  int64_t ranks = flags.stages;
  if (ranks == 0 && !cut.empty()) {
    const schedule::GeneratorInfo* info = schedule::FindGenerator(flags.schedule);
    const int64_t chunks =
        flags.chunks.value_or(info == nullptr ? 1 : std::max(1, info->default_chunks));
    const auto stages = static_cast<int64_t>(cut.size()) + 1;
    if (stages % chunks != 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.gradients] --cut makes {}, wanted a multiple of the schedule's "
                       "{} per rank",
                       Counted(stages, "stage"), chunks);
    }
    ranks = stages / chunks;
  }
  if (ranks == 0) {
    ranks = std::max(1, mpi_ranks);
  }
  if (mpi_ranks > 0 && ranks != mpi_ranks) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.gradients] mpirun started {}, but --stages or --cut make {}",
                     Counted(mpi_ranks, "rank"), ranks);
  }
  return static_cast<int>(ranks);
}

struct Prepared {
  serve::ModelBundle bundle;
  model::Partition partition{{0, 0}, 0};
  schedule::Schedule schedule;
  runtime::GradientJob job;
  int64_t rows = 0;  // of the longest sequence
};

Result<> PrepareCut(const GradientFlags& flags, const std::vector<int64_t>& cut,
                    const schedule::Schedule& compute, Prepared& out) {
  const model::Graph& graph = out.bundle.model.graph;
  if (flags.stages > graph.num_layers()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.gradients] --stages: got {}, wanted 1 to {} (decoder layers, embedding "
                     "and head)",
                     flags.stages, graph.num_layers());
  }
  if (!cut.empty() && static_cast<int>(cut.size()) + 1 != compute.num_stages()) {
    return MakeError(
        ErrorCode::kInvalidArgument, "[cli.gradients] --cut has {}, wanted {}: {} has {} over {}{}",
        Counted(cut.size(), "entry", "entries"), compute.num_stages() - 1, compute.name,
        Counted(compute.num_stages(), "stage"), Counted(compute.num_ranks(), "rank"),
        model::NearestCutText(graph.num_layers(), cut, compute.num_stages()));
  }
  if (cut.empty()) {
    PENSTOCK_TRY_ASSIGN(out.partition,
                        model::CutBalanced(train::TrainCut(graph, out.rows, flags.work_per_byte),
                                           compute.num_stages(), true));
  } else {
    PENSTOCK_TRY_ASSIGN(out.partition, model::CutAt(graph.num_layers(), cut));
  }
  return {};
}

Result<> PrepareJob(const GradientFlags& flags, int ranks, const Sequences& tokens,
                    const Sequences& targets, Prepared& out) {
  runtime::GradientJob& job = out.job;
  job.graph = &out.bundle.model.graph;
  job.files = out.bundle.files.get();
  job.partition = &out.partition;
  job.schedule = &out.schedule;
  job.micro_batches = Deal(tokens, targets, out.schedule.micro_batches);
  if (flags.weights == "bf16") {
    job.products = kernels::ProductType::kBF16;
  } else if (flags.weights != "f32") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.gradients] --weights: got '{}', wanted f32 or bf16", flags.weights);
  }
  PENSTOCK_TRY_ASSIGN(job.recompute, runtime::ParseRecompute(flags.recompute));
  job.threads = flags.threads > 0 ? static_cast<int>(flags.threads) : serve::DefaultThreads(ranks);
  PENSTOCK_TRY_ASSIGN(job.deadline_s, ReadDeadline(flags.deadline_s));
  PENSTOCK_TRY_ASSIGN(const int64_t limit, ReadMemoryLimit(flags.memory));
  job.memory_bytes = limit > 0 ? limit : AvailableMemoryBytes() / ranks;
  return {};
}

// Everything that is fixed before a weight is read; the same on every rank.
Result<std::unique_ptr<Prepared>> Prepare(const GradientFlags& flags, int mpi_ranks) {
  auto out = std::make_unique<Prepared>();
  PENSTOCK_TRY_ASSIGN(out->bundle, serve::OpenBundle(flags.model, model::GraphUse::kTrain));
  const model::ModelConfig& config = out->bundle.model.config;
  const int64_t vocabulary = config.vocabulary;
  PENSTOCK_TRY_ASSIGN(const Sequences tokens, ParseSequences(flags.tokens, "--tokens", vocabulary));
  for (const std::vector<int32_t>& sequence : tokens) {
    out->rows = std::max<int64_t>(out->rows, std::ssize(sequence));
    if (std::ssize(sequence) > config.context) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.gradients] --tokens: a sequence of {} ids, the model's context is {}",
                       sequence.size(), config.context);
    }
  }
  PENSTOCK_TRY_ASSIGN(const Sequences targets, TargetsOf(flags, tokens, vocabulary));
  std::vector<int64_t> cut;
  if (!flags.cut.empty()) {
    PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> entries, ParseIds(flags.cut, "--cut"));
    cut.assign(entries.begin(), entries.end());
  }
  PENSTOCK_TRY_ASSIGN(const int ranks, RanksOf(flags, cut, mpi_ranks));
  ScheduleFlags wanted;
  wanted.target = flags.schedule;
  if (schedule::FindGenerator(flags.schedule) != nullptr) {
    wanted.ranks = ranks;
    wanted.micro_batches = flags.micro_batches.value_or(static_cast<int>(tokens.size()));
    wanted.chunks = flags.chunks;
    wanted.slices = flags.slices;
  }
  PENSTOCK_TRY_ASSIGN(const schedule::Schedule compute,
                      LoadSchedule(wanted, {schedule::TransportKind::kCredits, out->job.credits}));
  if (compute.num_ranks() != ranks || compute.forward_only) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.gradients] --schedule {} {}, wanted one with a backward pass over {}",
                     flags.schedule,
                     compute.forward_only ? std::string("runs forward only")
                                          : "has " + Counted(compute.num_ranks(), "rank"),
                     Counted(ranks, "rank"));
  }
  PENSTOCK_TRY(PrepareCut(flags, cut, compute, *out));
  PENSTOCK_TRY_ASSIGN(const runtime::Recompute recompute, runtime::ParseRecompute(flags.recompute));
  PENSTOCK_TRY_ASSIGN(
      out->schedule,
      runtime::PrepareTrainSchedule(
          compute, out->bundle.model.graph, out->partition,
          {.recompute = recompute, .optimizer = false, .credits = out->job.credits}));
  PENSTOCK_TRY(PrepareJob(flags, ranks, tokens, targets, *out));
  return out;
}

// What a rank hands to rank 0.
std::vector<std::byte> Encode(const runtime::RankGradients& rank) {
  runtime::ByteWriter writer;
  writer.Put(static_cast<uint32_t>(rank.losses.size()));
  for (const std::vector<double>& term : rank.losses) {
    writer.PutAll(std::span<const double>(term));
  }
  writer.Put(static_cast<uint32_t>(rank.gradients.size()));
  for (const auto& [name, numbers] : rank.gradients) {
    writer.PutText(name);
    writer.PutAll(std::span<const float>(numbers));
  }
  return std::move(writer).Take();
}

Result<runtime::RankGradients> Decode(std::span<const std::byte> bytes) {
  runtime::RankGradients rank;
  runtime::ByteReader reader(bytes);
  uint32_t count = 0;
  reader.Get(count);
  for (uint32_t i = 0; i < count && !reader.bad(); ++i) {
    reader.GetAll(rank.losses.emplace_back(), kMostElements);
  }
  reader.Get(count);
  for (uint32_t i = 0; i < count && !reader.bad(); ++i) {
    std::string name;
    reader.GetText(name, 4096);
    reader.GetAll(rank.gradients[name], kMostElements);
  }
  if (!reader.done()) {
    return MakeError(ErrorCode::kCorruptData,
                     "[cli.gradients] a rank's gradients of {} bytes that contradict themselves",
                     bytes.size());
  }
  return rank;
}

// One process per rank: rank 0 gets everything, the others nothing.
Result<std::vector<runtime::RankGradients>> RunAcross(const runtime::GradientJob& job,
                                                      comm::Channel& channel,
                                                      MemoryAccount& account) {
  serve::ControlLink control(channel);
  PENSTOCK_TRY(control.Open(account));
  comm::LoadWatch watch(channel, job.deadline_s);
  PENSTOCK_TRY_ASSIGN(runtime::RankGradients own,
                      runtime::RunGradientRank(job, channel, watch, account));
  std::vector<runtime::RankGradients> all;
  const ProgressScope progress([&watch] { watch.Beat(); });
  // One after the other; who waits for its turn hears that rank 0 gets on.
  for (int other = 1; other < channel.size(); ++other) {
    PENSTOCK_TRY(watch.Meet());
    if (channel.rank() == other) {
      PENSTOCK_TRY(control.Send(0, Encode(own), job.deadline_s));
    }
    if (channel.rank() == 0) {
      PENSTOCK_TRY_ASSIGN(const std::vector<std::byte> bytes,
                          control.Receive(other, job.deadline_s, int64_t{1} << 46));
      PENSTOCK_TRY_ASSIGN(runtime::RankGradients rank, Decode(bytes));
      all.push_back(std::move(rank));
    }
  }
  if (channel.rank() == 0) {
    all.insert(all.begin(), std::move(own));
  }
  return all;
}

Result<> Gradients(GradientFlags flags, comm::Channel* channel, MemoryAccount& account) {
  if (flags.cut.empty()) {
    CrossingWeight own;
    if (channel == nullptr || channel->rank() == 0) {
      own = TrainCrossing(channel != nullptr);
    }
    PENSTOCK_TRY_ASSIGN(own,
                        AgreeOnCrossing(channel, std::move(own), StartDeadline(flags.deadline_s)));
    flags.work_per_byte = own.work_per_byte;
  }
  PENSTOCK_TRY_ASSIGN(const std::unique_ptr<Prepared> prepared,
                      Prepare(flags, channel == nullptr ? 0 : channel->size()));
  const runtime::GradientJob& job = prepared->job;
  PENSTOCK_TRY_ASSIGN(
      std::vector<runtime::RankGradients> ranks,
      channel == nullptr ? runtime::RunGradientThreads(job) : RunAcross(job, *channel, account));
  if (channel != nullptr && channel->rank() > 0) {
    return {};
  }
  std::map<std::string, std::vector<float>> gradients;
  for (runtime::RankGradients& rank : ranks) {
    gradients.merge(rank.gradients);
  }
  PENSTOCK_TRY(WriteGradients(flags.output, *job.graph, *job.files, gradients));
  const double loss = runtime::MeanLoss(job, ranks);
  if (flags.common.json) {
    PrintJson({{"loss", loss}});
  } else {
    fmt::print("loss {:.9g}, {} in {}\n", loss, Counted(gradients.size(), "gradient"),
               flags.output);
  }
  return {};
}

void AddFlags(Verb& verb, GradientFlags& flags) {
  constexpr int64_t kMany = int64_t{1} << 20;
  AddCommonFlags(verb, flags.common);
  verb.Heading("Model and data");
  verb.AddOption("-m,--model", flags.model, "A .gguf file or a folder in Hugging Face layout")
      ->Required()
      ->TypeName("MODEL");
  verb.AddOption("--tokens", flags.tokens, "Sequences of token ids, for instance 1,2,3;4,5,6")
      ->Required()
      ->TypeName("IDS");
  verb.AddOption("--targets", flags.targets,
                 "The id that should follow each position (default: the next one)")
      ->TypeName("IDS");
  verb.AddOption("--weights", flags.weights, "Inputs of matrix products: f32 or bf16")
      ->TypeName("TYPE")
      ->ShowDefault();
  verb.AddOption("-o,--output", flags.output, "Where the gradients go")
      ->Required()
      ->TypeName("FILE.safetensors");
  verb.Heading("Pipeline");
  AddInteger(verb, "--stages", flags.stages, "Ranks of the pipeline (default 1, or mpirun's)", 1,
             kMany)
      ->TypeName("N");
  verb.AddOption("--cut", flags.cut, "Layers at which new stages start (layer 0 is the embedding)")
      ->TypeName("LIST");
  verb.AddOption("--schedule", flags.schedule, "A schedule's name, or a file")
      ->TypeName("NAME")
      ->ShowDefault();
  verb.AddOption("--micro-batches", flags.micro_batches,
                 "Sequences are dealt to so many micro-batches (default: one each)")
      ->TypeName("M")
      ->Range(1, kMany);
  verb.AddOption("--chunks", flags.chunks, "Stages per rank (default: the schedule's)")
      ->TypeName("V")
      ->Range(1, 4096);
  verb.AddOption("--slices", flags.slices, "Sequence slices per micro-batch, for sliced schedules")
      ->TypeName("K")
      ->Range(1, 4096);
  verb.AddOption("--recompute", flags.recompute,
                 "What is computed again for the backward pass: none, selective or full")
      ->TypeName("WHAT")
      ->ShowDefault();
  AddInteger(verb, "--threads", flags.threads, "Threads per rank (default: cores / ranks)", 1, 4096)
      ->TypeName("N");
  verb.Heading("Memory and time");
  verb.AddOption("--memory", flags.memory,
                 "Bytes that each rank may use, for instance 2GiB (default: what is available, "
                 "divided by the "
                 "ranks of this machine)")
      ->TypeName("BYTES");
  verb.AddOption("--deadline", flags.deadline_s, "Seconds that a rank waits for another")
      ->TypeName("S")
      ->ShowDefault();
  verb.Examples(
      {"penstock gradients -m model --tokens '1,2,3;4,5,6' --stages 2 --schedule zb-h1 "
       "-o g.safetensors"});
}

}  // namespace

void AddGradients(Verb& app, int& status) {
  auto flags = std::make_shared<GradientFlags>();
  Verb* verb = app.AddVerb("gradients", "Loss and gradients of one step through any schedule");
  AddFlags(*verb, *flags);
  verb->Callback([verb, flags, &status] {
    status =
        RunRankVerb(*verb, flags->deadline_s, [&](comm::Channel* channel, MemoryAccount& account) {
          return Gradients(*flags, channel, account);
        });
  });
}

}  // namespace penstock::cli
