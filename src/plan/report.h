// The answer as JSON (interfaces of `penstock plan --json`) and as text for a terminal.

#pragma once

#include <optional>
#include <string>

#include "base/json_reader.h"
#include "plan/verdict.h"

namespace penstock::plan {

struct Answer {
  SearchResult search;
  Verdict verdict;
};

// How far predictions of this kind were from published measurements: shares of the measured value,
// from docs/accuracy.md. Nothing where none was compared.
struct ErrorBand {
  double low = 0;  // predicted / measured - 1
  double high = 0;
  std::string basis;
};

std::optional<ErrorBand> BandOf(const Context& context);

// The band as a sentence that says which sign is the optimistic one.
std::string BandText(const Context& context, const ErrorBand& band);

Json PlanJson(const Plan& plan);
Json AnswerJson(const Context& context, const Answer& answer, int top);

// A calm table: the verdict, the plans, the best one's arithmetic, what would turn it, and what was
// assumed. Without colours; `width` columns at most where words allow.
std::string AnswerText(const Context& context, const Answer& answer, int top, int width);

// Every figure that the answer rests on and nobody measured here.
std::vector<std::string> Assumptions(const Context& context);

}  // namespace penstock::plan
