#include "kernels/cpu/training_device.h"

#include <algorithm>

#include "kernels/cpu/training_ops.h"

namespace penstock::kernels {
namespace {

float* Floats(Tensor vector) {
  return vector.empty() ? nullptr : vector.Row<float>(0).data();
}

std::vector<SequenceRows> Sequences(std::span<const Segment> segments) {
  std::vector<SequenceRows> sequences;
  sequences.reserve(segments.size());
  for (const Segment& s : segments) {
    sequences.push_back({.first_row = s.first_row,
                         .rows = s.rows,
                         .first_position = s.first_position,
                         .blocks = {},
                         .long_rope = s.long_rope});
  }
  return sequences;
}

// A contiguous tensor as one long row, so that shares are even whatever its shape.
Tensor Flat(Tensor x) {
  return {x.Row<float>(0).data(), DType::kF32, 1, x.rows() * x.columns()};
}

constexpr int64_t kBlockElements = 4096;

}  // namespace

void CpuTraining::AddColumnSums(Tensor x, Tensor out) {
  PENSTOCK_CHECK(out.columns() == x.columns(), "a sum per column");
  OverColumns(x.columns(), x.rows(),
              [&](RowRange columns) { ColumnSums(x, Floats(out), columns); });
}

void CpuTraining::EmbedForward(Tensor table, std::span<const int32_t> ids, float scale,
                               Tensor out) {
  OverRows(out, 1, [&](RowRange range) {
    for (int64_t r = range.begin; r < range.end; ++r) {
      const int64_t id = ids[static_cast<size_t>(r)];
      PENSTOCK_CHECK(id >= 0 && id < table.rows(), "the row lies in the table");
      ScaleIntoRows(table.Rows(id, 1), scale, false, out.Rows(r, 1), {0, 1});
    }
  });
}

void CpuTraining::EmbedBackwardWeight(std::span<const int32_t> ids, float scale, Tensor dy,
                                      Tensor dtable) {
  for (const int32_t id : ids) {
    PENSTOCK_CHECK(id >= 0 && id < dtable.rows(), "the row lies in the table");
  }
  OverColumns(dy.columns(), dy.rows(),
              [&](RowRange columns) { AddRowsAt(dy, ids, scale, dtable, columns); });
}

void CpuTraining::RmsNormBackwardInput(Tensor x, Tensor weight, float epsilon, bool add_one,
                                       int64_t group, Tensor dy, bool accumulate, Tensor dx) {
  const int64_t columns = group == 0 ? x.columns() : group;
  PENSTOCK_CHECK(x.columns() % columns == 0 && weight.columns() == columns,
                 "groups fill the row, and the weight has a group's columns");
  OverRows(dx, 1, [&](RowRange range) {
    RmsNormBackwardRows(x, Floats(weight), epsilon, add_one, columns, dy, accumulate, dx, range);
  });
}

void CpuTraining::RmsNormBackwardWeight(Tensor x, float epsilon, int64_t group, Tensor dy,
                                        Tensor dweight) {
  const int64_t columns = group == 0 ? x.columns() : group;
  PENSTOCK_CHECK(x.columns() % columns == 0 && dweight.columns() == columns,
                 "groups fill the row, and the weight has a group's columns");
  norms_.resize(static_cast<size_t>(x.rows() * (x.columns() / columns)));
  OverRows(x, 1,
           [&](RowRange range) { InverseNormRows(x, epsilon, columns, norms_.data(), range); });
  OverColumns(columns, x.rows() * (x.columns() / columns), [&](RowRange range) {
    RmsNormWeightColumns(x, norms_.data(), columns, dy, Floats(dweight), range);
  });
}

void CpuTraining::RopeForward(Tensor x, const RopeParams& params, std::span<const Segment> segments,
                              Tensor out) {
  PENSTOCK_CHECK(x.columns() == params.heads * params.head_dim, "columns are heads");
  const RopeTables::Table table =
      device_.rope_tables().Get(params, Sequences(segments), x.rows(), pool_);
  OverSegments(segments, x.columns(),
               [&](RowRange range) { RopeRows(x, params, table.cos, table.sin, out, range); });
}

void CpuTraining::RopeBackward(Tensor dy, const RopeParams& params,
                               std::span<const Segment> segments, bool accumulate, Tensor dx) {
  PENSTOCK_CHECK(dy.columns() == params.heads * params.head_dim, "columns are heads");
  const RopeTables::Table table =
      device_.rope_tables().Get(params, Sequences(segments), dy.rows(), pool_);
  OverSegments(segments, dy.columns(), [&](RowRange range) {
    RopeBackwardRows(dy, params, table.cos, table.sin, accumulate, dx, range);
  });
}

void CpuTraining::GatedBackward(Activation activation, Tensor gate, Tensor up, Tensor dy,
                                bool accumulate_gate, Tensor dgate, bool accumulate_up,
                                Tensor dup) {
  OverRows(dy, 4, [&](RowRange range) {
    GatedBackwardRows(activation, gate, up, dy, accumulate_gate, dgate, accumulate_up, dup, range);
  });
}

void CpuTraining::ActBackward(Activation activation, Tensor x, Tensor dy, bool accumulate,
                              Tensor dx) {
  OverRows(dx, 4,
           [&](RowRange range) { ActBackwardRows(activation, x, dy, accumulate, dx, range); });
}

void CpuTraining::ScaleInto(Tensor dy, float factor, bool accumulate, Tensor dx) {
  OverRows(dx, 1, [&](RowRange range) { ScaleIntoRows(dy, factor, accumulate, dx, range); });
}

void CpuTraining::SoftCapBackward(Tensor x, float cap, Tensor dy, bool accumulate, Tensor dx) {
  OverRows(dx, 4, [&](RowRange range) { SoftCapBackwardRows(x, cap, dy, accumulate, dx, range); });
}

void CpuTraining::ScatterAddRows(Tensor dy, std::span<const int32_t> rows, Tensor dx) {
  PENSTOCK_CHECK(static_cast<int64_t>(rows.size()) == dy.rows(), "a target per row");
  OverRows(dy, 1, [&](RowRange range) {
    const auto begin = static_cast<size_t>(range.begin);
    const auto count = static_cast<size_t>(range.end - range.begin);
    AddRowsAt(dy.Rows(range.begin, range.end - range.begin), rows.subspan(begin, count), 1.0F, dx,
              {0, dy.columns()});
  });
}

void CpuTraining::Dropout(Tensor x, const DropoutKey& key, float rate, Tensor out) {
  DropoutBackward(x, key, rate, false, out);
}

void CpuTraining::DropoutBackward(Tensor dy, const DropoutKey& key, float rate, bool accumulate,
                                  Tensor dx) {
  PENSTOCK_CHECK(rate >= 0 && rate < 1, "a rate of dropout is at least 0 and below 1");
  OverRows(dx, 4, [&](RowRange range) { DropoutRows(dy, key, rate, accumulate, dx, range); });
}

void CpuTraining::CrossEntropy(Tensor logits, std::span<const int32_t> targets,
                               std::span<double> nll, Tensor lse) {
  PENSTOCK_CHECK(
      static_cast<int64_t>(targets.size()) == logits.rows() && nll.size() == targets.size(),
      "a target and a loss per row");
  for (const int32_t target : targets) {
    PENSTOCK_CHECK(target < logits.columns(), "the target lies in the vocabulary");
  }
  OverRows(logits, 4, [&](RowRange range) { CrossEntropyRows(logits, targets, nll, lse, range); });
}

void CpuTraining::CrossEntropyBackward(Tensor logits, std::span<const int32_t> targets, Tensor lse,
                                       float factor, Tensor dlogits) {
  PENSTOCK_CHECK(static_cast<int64_t>(targets.size()) == logits.rows(), "a target per row");
  OverRows(dlogits, 4, [&](RowRange range) {
    CrossEntropyBackwardRows(logits, targets, lse, factor, dlogits, range);
  });
}

double CpuTraining::SumOfSquares(Tensor x) {
  if (x.rows() == 0 || x.columns() == 0) {
    return 0;
  }
  const Tensor rows = x.contiguous() ? Flat(x) : x;
  const int64_t per_row = (rows.columns() + kBlockElements - 1) / kBlockElements;
  const int64_t blocks = rows.rows() * per_row;
  blocks_.resize(static_cast<size_t>(blocks));
  pool_.Split(blocks, x.rows() * x.columns() < 4 * CpuDevice::kSerialElements,
              [&](int64_t begin, int64_t end) {
                for (int64_t b = begin; b < end; ++b) {
                  const std::span<const float> row = rows.Row<float>(b / per_row);
                  const int64_t first = b % per_row * kBlockElements;
                  const int64_t count = std::min(kBlockElements, rows.columns() - first);
                  blocks_[static_cast<size_t>(b)] = SumOfSquaresOf(row.data() + first, count);
                }
              });
  double sum = 0;
  for (const double block : blocks_) {
    sum += block;
  }
  return sum;
}

void CpuTraining::AdamW(const AdamWParams& params, Tensor g, Tensor w, Tensor m, Tensor v) {
  if (w.rows() == 0 || w.columns() == 0) {
    return;
  }
  const AdamWFactors factors = FactorsOf(params);
  if (!(g.contiguous() && w.contiguous() && m.contiguous() && v.contiguous())) {
    OverRows(w, 1, [&](RowRange range) { AdamWRows(factors, g, w, m, v, range); });
    return;
  }
  const Tensor fg = Flat(g);
  const Tensor fw = Flat(w);
  const Tensor fm = Flat(m);
  const Tensor fv = Flat(v);
  OverColumns(fw.columns(), 1, [&](RowRange range) {
    const int64_t n = range.end - range.begin;
    AdamWRows(factors, fg.Columns(range.begin, n), fw.Columns(range.begin, n),
              fm.Columns(range.begin, n), fv.Columns(range.begin, n), {0, 1});
  });
}

void CpuTraining::AdamWRepack(const AdamWParams& params, Tensor g, Tensor w, Tensor m, Tensor v,
                              std::span<const PackedRows> images) {
  const auto offset = [&](const PackedRows& image) { return image.first_row % kStrip; };
  const bool together =
      !images.empty() && g.contiguous() && w.contiguous() && m.contiguous() && v.contiguous() &&
      std::all_of(images.begin(), images.end(),
                  [&](const PackedRows& image) { return offset(image) == offset(images[0]); });
  if (!together) {
    AdamW(params, g, w, m, v);
    for (const PackedRows& image : images) {
      Repack(*image.matrix, w, image.first_row);
    }
    return;
  }
  const AdamWFactors factors = FactorsOf(params);
  const int64_t first = offset(images[0]);
  const int64_t strips = (first + w.rows() + kStrip - 1) / kStrip;
  pool_.Split(strips, w.rows() * w.columns() < CpuDevice::kSerialElements,
              [&](int64_t begin, int64_t end) {
                for (int64_t s = begin; s < end; ++s) {
                  const RowRange rows{std::max<int64_t>(0, s * kStrip - first),
                                      std::min(w.rows(), (s + 1) * kStrip - first)};
                  const auto part = [&](Tensor x) {
                    return Flat(x.Rows(rows.begin, rows.end - rows.begin));
                  };
                  AdamWRows(factors, part(g), part(w), part(m), part(v), {0, 1});
                  for (const PackedRows& image : images) {
                    static_cast<CpuTrainMatrix*>(image.matrix)->PackRows(w, image.first_row, rows);
                  }
                }
              });
}

void CpuTraining::Fill(Tensor x, float value) {
  OverRows(x, 1, [&](RowRange range) { FillRows(x, value, range); });
}

std::unique_ptr<TrainingDevice> CreateCpuTraining(Device& device) {
  return std::make_unique<CpuTraining>(static_cast<CpuDevice&>(device));
}

}  // namespace penstock::kernels
