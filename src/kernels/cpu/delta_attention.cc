#include "kernels/cpu/delta_attention.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/slots.h"

namespace penstock::kernels {

int64_t CpuDevice::DeltaSlotBytes(int64_t heads, int64_t dim) const {
  return heads * DeltaHeadFloats(dim) * 4;
}

int64_t CpuDevice::DeltaWorkspaceBytes(const DeltaParams& params) const {
  return pool_.threads() * DeltaScratchFloats(params.dim) * 4;
}

void CpuDevice::DeltaAttention(SlotCache& cache, const DeltaParams& params,
                               std::span<const SequenceRows> sequences, Tensor q, Tensor k,
                               Tensor v, Tensor f, Tensor b, Tensor out, Tensor workspace) {
  PENSTOCK_CHECK(q.columns() == params.heads * params.dim && b.columns() == params.heads,
                 "columns are heads");
  PENSTOCK_CHECK(workspace.bytes() >= DeltaWorkspaceBytes(params), "the workspace is large enough");
  auto& slots = static_cast<CpuSlotCache&>(cache);
  auto* scratch = reinterpret_cast<float*>(workspace.Bytes().data());
  const int64_t floats = DeltaScratchFloats(params.dim);
  const auto count = static_cast<int64_t>(sequences.size());
  // Shares of heads, all sequences of each: a thread finds its heads' weights once.
  const bool serial = q.rows() * params.heads * params.dim * params.dim < kSerialElements;
  const auto state = [&](int64_t i) {
    return slots.Slot(sequences[static_cast<size_t>(i / params.heads)]) +
           i % params.heads * DeltaHeadFloats(params.dim);
  };
  const auto run = [&](int thread, int64_t threads) {
    for (int64_t i = 0; i < count * params.heads; ++i) {
      if (i % threads != thread) {
        continue;
      }
      const SequenceRows& sequence = sequences[static_cast<size_t>(i / params.heads)];
      const int64_t next = i + threads;
      RunDeltaHead({&params, i % params.heads, &sequence, state(i),
                    next < count * params.heads ? state(next) : nullptr},
                   q, k, v, f, b, out, scratch + thread * floats);
    }
  };
  if (serial) {
    run(0, 1);
  } else {
    pool_.Run([&](int thread) { run(thread, pool_.threads()); });
  }
}

}  // namespace penstock::kernels
