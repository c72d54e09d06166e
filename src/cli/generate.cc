#include "cli/generate.h"

#include <algorithm>
#include <cstdio>

#include "cli/model_flags.h"

namespace penstock::cli {

OnText StreamToStdout() {
  return [](size_t, const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    if (std::fflush(stdout) != 0) {
      Interrupt();
    }
  };
}

Generation::Generation(serve::Engine& engine, const text::Tokenizer* tokenizer,
                       const GenerateOptions& options, OnText on_text)
    : engine_(engine), tokenizer_(tokenizer), options_(options), on_text_(std::move(on_text)) {}

Result<Generation::Entry> Generation::NewEntry(int64_t prompt_tokens, int64_t max_new) {
  Entry entry;
  entry.max_new = max_new;
  entry.output.prompt_tokens = prompt_tokens;
  if (tokenizer_ != nullptr) {
    entry.detokenizer.emplace(*tokenizer_,
                              text::DetokenizerOptions{.skip_special = true, .at_start = false});
  }
  if (!options_.stops.empty()) {
    PENSTOCK_TRY_ASSIGN(text::StopFilter filter, text::StopFilter::Make(options_.stops));
    entry.filter.emplace(std::move(filter));
  }
  return entry;
}

Result<> Generation::Add(const Prompt& prompt, int64_t room) {
  PENSTOCK_TRY_ASSIGN(Entry entry,
                      NewEntry(static_cast<int64_t>(prompt.tokens.size()),
                               prompt.max_new > 0 ? prompt.max_new : options_.max_new));
  PENSTOCK_TRY_ASSIGN(entry.sequence,
                      engine_.Admit(prompt.tokens, entry.max_new, options_.sampling, room));
  entries_.push_back(std::move(entry));
  return {};
}

Result<> Generation::AddContinued(int32_t sequence, std::span<const int32_t> tokens) {
  PENSTOCK_TRY_ASSIGN(Entry entry, NewEntry(static_cast<int64_t>(tokens.size()), options_.max_new));
  entry.sequence = sequence;
  PENSTOCK_TRY(engine_.Continue(sequence, tokens, options_.max_new, options_.sampling));
  entries_.push_back(std::move(entry));
  return {};
}

double Generation::Now() const {
  return std::chrono::duration<double>(comm::Clock::now() - start_).count();
}

void Generation::Show(Entry& entry, const std::string& text) {
  if (text.empty()) {
    return;
  }
  entry.output.text += text;
  if (on_text_) {
    on_text_(static_cast<size_t>(&entry - entries_.data()), text);
  }
}

void Generation::Close(Entry& entry, const char* reason) {
  if (!entry.output.finish_reason.empty()) {
    return;
  }
  entry.output.finish_reason = reason;
  std::string rest = entry.detokenizer ? entry.detokenizer->Finish() : "";
  if (entry.filter) {
    rest = entry.filter->Add(rest) + entry.filter->Finish();
  }
  Show(entry, rest);
}

bool Generation::OnRow(const serve::RowResult& row) {
  const auto it = std::find_if(entries_.begin(), entries_.end(),
                               [&](const Entry& e) { return e.sequence == row.sequence; });
  PENSTOCK_CHECK(it != entries_.end(), "results are of admitted sequences");
  Entry& entry = *it;
  const int32_t token = row.sampled.token;
  entry.last_s = Now();
  if (entry.first_s < 0) {
    entry.first_s = entry.last_s;
  }
  arrivals_s_.push_back(entry.last_s);
  if (!options_.ignore_eos && options_.end_ids.contains(token)) {
    Close(entry, "stop");
    return true;
  }
  entry.output.tokens.push_back(token);
  if (options_.sampling.logprobs >= 0) {
    entry.output.logprobs.push_back(row.sampled);
  }
  std::string piece = entry.detokenizer ? entry.detokenizer->Add(token) : "";
  if (entry.filter) {
    piece = entry.filter->Add(piece);
  }
  Show(entry, piece);
  if (entry.filter && entry.filter->stopped()) {
    Close(entry, "stop");
    return true;
  }
  if (static_cast<int64_t>(entry.output.tokens.size()) >= entry.max_new) {
    Close(entry, "length");
  }
  return false;
}

Result<> Generation::Run() {
  start_ = comm::Clock::now();
  bool more = true;
  while (more && !Interrupted()) {
    PENSTOCK_TRY_ASSIGN(
        more, engine_.Advance([this](const serve::RowResult& row) { return OnRow(row); }));
  }
  end_s_ = Now();
  for (Entry& entry : entries_) {
    if (entry.output.finish_reason.empty()) {
      engine_.decider().Finish(entry.sequence);
      Close(entry, "interrupted");
    }
  }
  return {};
}

std::vector<Output> Generation::TakeOutputs() {
  std::vector<Output> outputs;
  for (Entry& entry : entries_) {
    outputs.push_back(std::move(entry.output));
  }
  return outputs;
}

Rates Generation::rates() const {
  Rates rates;
  double tail_s = 0;
  int64_t tail_tokens = 0;
  for (const Entry& entry : entries_) {
    rates.prefill_tokens += entry.output.prompt_tokens;
    rates.ttft_s = std::max(rates.ttft_s, entry.first_s);
    const auto produced = static_cast<int64_t>(entry.output.tokens.size());
    if (produced > 1) {
      tail_s += entry.last_s - entry.first_s;
      tail_tokens += produced - 1;
    }
  }
  rates.ttft_s = std::max(0.0, rates.ttft_s);
  rates.prefill_s = rates.ttft_s;
  rates.decode_s = std::max(0.0, end_s_ - rates.ttft_s);
  rates.decode_tokens = std::count_if(arrivals_s_.begin(), arrivals_s_.end(),
                                      [&](double at) { return at > rates.ttft_s; });
  if (rates.decode_tokens == 0) {
    rates.decode_s = 0;
  }
  if (tail_tokens > 0) {
    rates.tpot_s = tail_s / static_cast<double>(tail_tokens);
  }
  return rates;
}

}  // namespace penstock::cli
