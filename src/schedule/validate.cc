#include "schedule/validate.h"

#include <algorithm>

#include "schedule/grid.h"
#include "schedule/proof/proof.h"

namespace penstock::schedule {
namespace {

constexpr int kGridCells = 10;
constexpr int kLeastGridCells = 3;
constexpr size_t kGridWidth = 100;
constexpr int kGridRanks = 16;

}  // namespace

std::string_view ProblemKindText(ProblemKind kind) {
  switch (kind) {
    case ProblemKind::kParse:
      return "parse";
    case ProblemKind::kMissing:
      return "missing";
    case ProblemKind::kDuplicate:
      return "duplicate";
    case ProblemKind::kOrder:
      return "order";
    case ProblemKind::kDeadlock:
      return "deadlock";
    case ProblemKind::kUnmatched:
      return "unmatched";
    case ProblemKind::kRange:
      return "range";
    case ProblemKind::kPlacement:
      return "placement";
    case ProblemKind::kMemory:
      return "memory";
    case ProblemKind::kShape:
      break;
  }
  return "shape";
}

int ProblemList::CellOf(int rank, int64_t index) const {
  const auto& program = schedule_.ranks[static_cast<size_t>(rank)];
  int cell = -1;
  for (int64_t i = 0; i <= index; ++i) {
    if (!program[static_cast<size_t>(i)].joined || cell < 0)
      ++cell;
  }
  return cell;
}

void ProblemList::AddListed(ProblemKind kind, int rank, int64_t index, const Action* absent,
                            std::string message) {
  Problem problem;
  problem.kind = kind;
  problem.rank = rank;
  if (index >= 0) {
    problem.position = CellOf(rank, index);
    problem.action = TextAt(rank, index);
  } else if (absent != nullptr) {
    problem.action = Text(*absent);
  }
  problem.message = std::move(message);
  report_.problems.push_back(std::move(problem));
}

Report Validate(const Schedule& schedule, const ValidateOptions& options) {
  Report report;
  Proof proof(schedule, options, report);
  const size_t limits = options.activation_limit.size();
  const bool limits_fit = limits <= 1 || limits == schedule.ranks.size();
  const bool bytes_fit =
      options.activation_bytes.empty() ||
      options.activation_bytes.size() == static_cast<size_t>(schedule.num_stages());
  if (!limits_fit || !bytes_fit) {
    proof.problems.Add(ProblemKind::kShape, -1, -1, [&] {
      return limits_fit ? fmt::format("activation bytes of {} stages, wanted {}",
                                      options.activation_bytes.size(), schedule.num_stages())
                        : fmt::format("{} activation limits, wanted 1 or {}", limits,
                                      schedule.ranks.size());
    });
    return report;
  }
  if (!CheckShape(proof) || !IndexActions(proof))
    return report;
  IndexMessages(proof);
  CheckOrder(proof);
  CheckValues(proof);
  RunToEnd(proof);
  CheckMemory(proof);
  return report;
}

namespace {

size_t LongestLine(std::string_view text) {
  size_t longest = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    longest = std::max(longest, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return longest;
}

// The part of the grid around one cell, as many cells as a terminal is wide.
std::string GridAround(const Schedule& schedule, int rank, int cell) {
  GridOptions grid;
  grid.mark_rank = rank;
  grid.mark_cell = cell;
  grid.from_rank = std::max(0, rank - kGridRanks / 2);
  grid.max_ranks = kGridRanks;
  for (int cells = kGridCells;; --cells) {
    grid.from_cell = std::max(0, cell - cells / 2);
    grid.max_cells = cells;
    std::string text = GridText(schedule, grid);
    if (cells == kLeastGridCells || LongestLine(text) <= kGridWidth)
      return text;
  }
}

}  // namespace

std::string FormatProblems(const Schedule& schedule, const Report& report) {
  std::string text;
  for (const Problem& problem : report.problems) {
    text += ProblemKindText(problem.kind);
    if (problem.rank >= 0)
      text += fmt::format(", rank {}", problem.rank);
    if (problem.position >= 0)
      text += fmt::format(", cell {}", problem.position);
    if (!problem.action.empty())
      text += fmt::format(", {}", problem.action);
    text += fmt::format(": {}\n", problem.message);
  }
  const auto unlisted = report.problem_count - static_cast<int64_t>(report.problems.size());
  if (unlisted > 0)
    text += fmt::format("and {} more\n", unlisted);
  for (const Problem& problem : report.problems) {
    if (problem.rank < 0 || problem.position < 0)
      continue;
    return text + "\n" + GridAround(schedule, problem.rank, problem.position);
  }
  return text;
}

Result<> Prove(const Schedule& schedule, const ValidateOptions& options) {
  constexpr int kShown = 5;
  ValidateOptions few = options;
  few.max_problems = std::min(options.max_problems, kShown);
  const Report report = Validate(schedule, few);
  if (report.ok())
    return {};
  return MakeError(ErrorCode::kInvalidSchedule, "[schedule.validate] {}: {} problem{}\n{}",
                   schedule.name, report.problem_count, report.problem_count == 1 ? "" : "s",
                   FormatProblems(schedule, report));
}

}  // namespace penstock::schedule
