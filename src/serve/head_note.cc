#include "serve/head_note.h"

#include <algorithm>

#include "runtime/bytes.h"

namespace penstock::serve {
namespace {

using runtime::ByteReader;
using runtime::ByteWriter;

constexpr uint64_t kMaxCount = uint64_t{1} << 28;
constexpr int64_t kRowFixed = 64;

}  // namespace

std::vector<std::byte> EncodeNote(const HeadNote& note) {
  ByteWriter writer;
  writer.Put(static_cast<uint32_t>(note.admissions.size()));
  for (const Admission& admission : note.admissions) {
    writer.Put(admission.sequence);
    writer.Put(admission.params);
    writer.PutAll(std::span<const int32_t>(admission.history));
  }
  writer.PutAll(std::span<const int32_t>(note.targets));
  return std::move(writer).Take();
}

Result<HeadNote> DecodeNote(std::span<const std::byte> bytes) {
  HeadNote note;
  ByteReader reader(bytes);
  uint32_t count = 0;
  reader.Get(count);
  for (uint32_t i = 0; i < count && !reader.bad(); ++i) {
    Admission& admission = note.admissions.emplace_back();
    reader.Get(admission.sequence);
    reader.Get(admission.params);
    reader.GetAll(admission.history, kMaxCount);
  }
  reader.GetAll(note.targets, kMaxCount);
  if (!reader.done()) {
    return MakeError(ErrorCode::kCorruptData,
                     "[serve.note] a head note of {} bytes that contradicts itself", bytes.size());
  }
  return note;
}

std::vector<std::byte> EncodeResults(std::span<const RowResult> rows) {
  ByteWriter writer;
  writer.Put(static_cast<uint32_t>(rows.size()));
  for (const RowResult& row : rows) {
    writer.Put(row.sequence);
    writer.Put(row.position);
    writer.Put(row.sampled.token);
    writer.Put(row.sampled.logprob);
    writer.PutAll(std::span<const TokenLogprob>(row.sampled.top));
    writer.PutAll(std::span<const float>(row.logits));
  }
  return std::move(writer).Take();
}

Result<std::vector<RowResult>> DecodeResults(std::span<const std::byte> bytes) {
  std::vector<RowResult> rows;
  ByteReader reader(bytes);
  uint32_t count = 0;
  reader.Get(count);
  for (uint32_t i = 0; i < count && !reader.bad(); ++i) {
    RowResult& row = rows.emplace_back();
    reader.Get(row.sequence);
    reader.Get(row.position);
    reader.Get(row.sampled.token);
    reader.Get(row.sampled.logprob);
    reader.GetAll(row.sampled.top, kMaxCount);
    reader.GetAll(row.logits, kMaxCount);
  }
  if (!reader.done()) {
    return MakeError(ErrorCode::kCorruptData,
                     "[serve.result] a result of {} bytes that contradicts itself", bytes.size());
  }
  return rows;
}

int64_t MaxNoteBytes(int64_t max_sequences, int64_t history_tokens, int64_t targets) {
  return 16 + max_sequences * (16 + static_cast<int64_t>(sizeof(SamplingParams))) +
         history_tokens * 4 + targets * 4;
}

int64_t MaxResultBytes(HeadMode mode, int64_t selected, int64_t vocabulary, int32_t logprobs) {
  int64_t row = kRowFixed + std::max(0, logprobs) * static_cast<int64_t>(sizeof(TokenLogprob));
  if (mode == HeadMode::kLogits) {
    row += vocabulary * 4;
  }
  return 16 + selected * row;
}

}  // namespace penstock::serve
