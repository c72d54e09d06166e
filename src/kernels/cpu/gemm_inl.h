// The loops around the micro kernels, included once per instruction set inside its namespace and
// target attributes, after the operation types (see OpExample below).
//
// An operation type has
//   Acc                       16 sums of one (row, strip)
//   W, A                      one word of weights; one group of one activation row
//   kWordBytes                bytes of weights per group and strip
//   kActivationBytes          bytes of activations per group
//   kStripOuter               W fills the registers: finish one strip before the next
//   kRows[1..4]               rows of a tile for that number of strips; 0: not used
//   LoadW(group, strip, width), LoadA(pointer), Dot(acc, a, w)
//   LoadState, StoreState     sums between blocks of groups
//   Finish(acc, args, row, column, valid): the result as float32
// No include guard: included several times by design.

// Partial sums of more groups than this rest in `out`; the weights of a block then stay in the
// first-level cache while all rows pass.
inline constexpr int64_t kBlockBytes = 32768;

template <class Op, int kTileRows, int kStrips>
inline void Micro(const GemmArgs& args, int64_t row, const std::byte* panel, int64_t strip,
                  int64_t width, int64_t column, int64_t group_begin, int64_t group_end) {
  typename Op::Acc acc[kTileRows][kStrips];
  const bool first = group_begin == 0;
  PENSTOCK_UNROLL
  for (int m = 0; m < kTileRows; ++m) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kStrips; ++v) {
      const int64_t c = column + v * kStrip;
      acc[m][v] = first
                      ? Op::Zero()
                      : Op::LoadState(args.out + (row + m) * args.out_stride + c, args.columns - c);
    }
  }
  const std::byte* w = panel + group_begin * width * Op::kWordBytes;
  const std::byte* a = args.a + row * args.a_stride + group_begin * Op::kActivationBytes;
  for (int64_t g = group_begin; g < group_end; ++g) {
    if constexpr (Op::kStripOuter) {
      PENSTOCK_UNROLL
      for (int v = 0; v < kStrips; ++v) {
        const typename Op::W word = Op::LoadW(w, strip + v, width);
        PENSTOCK_UNROLL
        for (int m = 0; m < kTileRows; ++m) {
          Op::Dot(acc[m][v], Op::LoadA(a + m * args.a_stride), word);
        }
      }
    } else {
      typename Op::W words[kStrips];
      PENSTOCK_UNROLL
      for (int v = 0; v < kStrips; ++v) {
        words[v] = Op::LoadW(w, strip + v, width);
      }
      PENSTOCK_UNROLL
      for (int m = 0; m < kTileRows; ++m) {
        const typename Op::A activation = Op::LoadA(a + m * args.a_stride);
        PENSTOCK_UNROLL
        for (int v = 0; v < kStrips; ++v) {
          Op::Dot(acc[m][v], activation, words[v]);
        }
      }
    }
    w += width * Op::kWordBytes;
    a += Op::kActivationBytes;
  }
  const bool last = group_end == args.groups;
  PENSTOCK_UNROLL
  for (int m = 0; m < kTileRows; ++m) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kStrips; ++v) {
      const int64_t c = column + v * kStrip;
      float* out = args.out + (row + m) * args.out_stride + c;
      if (last) {
        StoreFloats(out, args.columns - c, Op::Finish(acc[m][v], args, row + m, c));
      } else {
        Op::StoreState(out, args.columns - c, acc[m][v]);
      }
    }
  }
}

// Runs a tile of `tile_rows` rows, 1 <= tile_rows <= kTileRows.
template <class Op, int kTileRows, int kStrips>
inline void Tile(int64_t tile_rows, const GemmArgs& args, int64_t row, const std::byte* panel,
                 int64_t strip, int64_t width, int64_t column, int64_t group_begin,
                 int64_t group_end) {
  if (tile_rows == kTileRows) {
    Micro<Op, kTileRows, kStrips>(args, row, panel, strip, width, column, group_begin, group_end);
  } else if constexpr (kTileRows > 1) {
    Tile<Op, kTileRows - 1, kStrips>(tile_rows, args, row, panel, strip, width, column, group_begin,
                                     group_end);
  }
}

template <class Op, int kStrips>
inline void Strips(const GemmArgs& args, const std::byte* panel, int64_t strip, int64_t width,
                   int64_t column) {
  constexpr int64_t kTileRows = Op::kRows[kStrips];
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows;
  const int64_t block =
      tiles == 1 ? args.groups : std::max<int64_t>(1, kBlockBytes / (width * Op::kWordBytes));
  for (int64_t g = 0; g < args.groups; g += block) {
    const int64_t end = std::min(args.groups, g + block);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin_row = args.rows * t / tiles;
      const int64_t end_row = args.rows * (t + 1) / tiles;
      Tile<Op, Op::kRows[kStrips], kStrips>(end_row - begin_row, args, begin_row, panel, strip,
                                            width, column, g, end);
    }
  }
}

template <class Op>
void Gemm(const GemmArgs& args, int64_t strip_begin, int64_t strip_end) {
  const int64_t all_strips = (args.columns + kStrip - 1) / kStrip;
  // With few rows a tile takes more strips, so that enough sums are in flight.
  int64_t most = kPanelStrips;
  while (most > 1 && (Op::kRows[most] == 0 || (args.rows > Op::kRows[most] && !Op::kWide))) {
    --most;
  }
  for (int64_t s = strip_begin; s < strip_end;) {
    const int64_t panel = s / kPanelStrips;
    const int64_t width = std::min(kPanelStrips, all_strips - panel * kPanelStrips);
    const std::byte* data =
        args.w + panel * kPanelStrips * args.groups * static_cast<int64_t>(Op::kWordBytes);
    const int64_t local = s - panel * kPanelStrips;
    int64_t count = std::min({strip_end - s, width - local, most});
    while (Op::kRows[count] == 0) {
      --count;
    }
    switch (count) {
      case 4:
        if constexpr (Op::kRows[4] > 0) {
          Strips<Op, 4>(args, data, local, width, s * kStrip);
        }
        break;
      case 3:
        if constexpr (Op::kRows[3] > 0) {
          Strips<Op, 3>(args, data, local, width, s * kStrip);
        }
        break;
      case 2:
        if constexpr (Op::kRows[2] > 0) {
          Strips<Op, 2>(args, data, local, width, s * kStrip);
        }
        break;
      default:
        Strips<Op, 1>(args, data, local, width, s * kStrip);
        break;
    }
    s += count;
  }
}
