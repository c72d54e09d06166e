// The loops around the micro kernels, included once per instruction set inside its namespace and
// target attributes, after the operation types (see OpExample below).
//
// An operation type has
//   Acc                       16 sums of one (row, strip)
//   W, A                      one word of weights; one group of one activation row
//   kWordBytes                bytes of weights per group and strip
//   kActivationBytes          bytes of activations per group
//   kStripOuter               W fills the registers: finish one strip before the next
//   kFewRegisters             of those: W does not even fit, and DotOnce unpacks as it goes
//   kRows[1..4]               rows of a tile for that number of strips; 0: not used
//   LoadW(group, strip, width), LoadA(pointer), Dot(acc, a, w)
//   LoadState, StoreState     sums between blocks of groups
//   Finish(acc, args, row, column, valid): the result as float32
// No include guard: included several times by design.

// A block of groups of one panel, and the block's activations.
struct Piece {
  const std::byte* a = nullptr;  // row 0
  const std::byte* w = nullptr;
  int64_t width = 0;  // strips of the panel
  int64_t groups = 0;
  int64_t ahead = 0;  // bytes of weights after which the next block is fetched meanwhile; 0: not
  bool first = false;
  bool last = false;
  float* sums = nullptr;  // between blocks: [rows of a pass][kPanelColumns], as floats or integers
};

inline constexpr int64_t kPanelColumns = kPanelStrips * kStrip;
// Rows of a pass: so few that the sums (128 KB) stay in the second-level cache, and so many that
// reading the weights again for the next pass costs nothing.
inline constexpr int64_t kPassRows = 512;

// Adds the products of a piece to the sums of a tile.
template <bool kAhead, class Op, int kTileRows, int kStrips>
HWY_INLINE void Accumulate(const GemmArgs& args, const Piece& piece, int64_t first_row,
                           int64_t strip, typename Op::Acc (&acc)[kTileRows][kStrips]) {
  const std::byte* w = piece.w;
  const std::byte* a = piece.a + first_row * args.row_stride;
  // The next tile's activations, which its first pass over this panel would wait for: without this
  // 8,192 columns run at half the speed of 2,048.
  [[maybe_unused]] const std::byte* next = a + kTileRows * args.row_stride;
  [[maybe_unused]] const int64_t ahead = piece.ahead + strip * Op::kWordBytes;
  for (int64_t g = 0; g < piece.groups; ++g) {
    if constexpr (!kAhead && kTileRows > 1) {
      _mm_prefetch(reinterpret_cast<const char*>(next + g * kTileRows * Op::kActivationBytes),
                   _MM_HINT_T0);
    }
    if constexpr (kAhead) {
      PENSTOCK_UNROLL
      for (int64_t i = 0; i < kStrips * Op::kWordBytes / 64; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(w + ahead + i * 64), _MM_HINT_T1);
      }
    }
    if constexpr (Op::kStripOuter) {
      PENSTOCK_UNROLL
      for (int v = 0; v < kStrips; ++v) {
        if constexpr (kTileRows == 1 && Op::kFewRegisters) {
          Op::DotOnce(acc[0][v], Op::LoadA(a), w, strip + v, piece.width);
          continue;
        }
        const typename Op::W word = Op::LoadW(w, strip + v, piece.width);
        PENSTOCK_UNROLL
        for (int m = 0; m < kTileRows; ++m) {
          Op::Dot(acc[m][v], Op::LoadA(a + m * args.row_stride), word);
        }
      }
    } else {
      typename Op::W words[kStrips];
      PENSTOCK_UNROLL
      for (int v = 0; v < kStrips; ++v) {
        words[v] = Op::LoadW(w, strip + v, piece.width);
      }
      PENSTOCK_UNROLL
      for (int m = 0; m < kTileRows; ++m) {
        const typename Op::A activation = Op::LoadA(a + m * args.row_stride);
        PENSTOCK_UNROLL
        for (int v = 0; v < kStrips; ++v) {
          Op::Dot(acc[m][v], activation, words[v]);
        }
      }
    }
    w += piece.width * Op::kWordBytes;
    a += Op::kActivationBytes;
  }
}

template <class Op, int kTileRows, int kStrips>
inline void Micro(const GemmArgs& args, const Piece& piece, int64_t pass, int64_t row,
                  int64_t strip, int64_t column) {
  typename Op::Acc acc[kTileRows][kStrips];
  float* sums = piece.sums + row * kPanelColumns + strip * kStrip;
  if (args.bias_stride != 0 && piece.last) {
    // What the sums are added to is far away: waiting for it at the end takes half as long as the
    // product.
    for (int m = 0; m < kTileRows; ++m) {
      for (int v = 0; v < kStrips; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(args.bias + (pass + row + m) * args.bias_stride +
                                                   column + v * kStrip),
                     _MM_HINT_T0);
      }
    }
  }
  PENSTOCK_UNROLL
  for (int m = 0; m < kTileRows; ++m) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kStrips; ++v) {
      acc[m][v] = piece.first ? Op::Zero() : Op::LoadState(sums + m * kPanelColumns + v * kStrip);
    }
  }
  // Two copies of the loop would cost the registers that unpacked words need.
  if constexpr (Op::kStripOuter) {
    Accumulate<(kTileRows > 1), Op>(args, piece, pass + row, strip, acc);
  } else if (piece.ahead != 0) {
    Accumulate<true, Op>(args, piece, pass + row, strip, acc);
  } else {
    Accumulate<false, Op>(args, piece, pass + row, strip, acc);
  }
  PENSTOCK_UNROLL
  for (int m = 0; m < kTileRows; ++m) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kStrips; ++v) {
      if (piece.last) {
        const int64_t c = column + v * kStrip;
        const int64_t r = pass + row + m;
        StoreFloats(args.out + r * args.out_stride + c, args.columns - c,
                    Op::Finish(acc[m][v], args, r, c));
      } else {
        Op::StoreState(sums + m * kPanelColumns + v * kStrip, acc[m][v]);
      }
    }
  }
}

// Runs a tile of `tile_rows` rows, 1 <= tile_rows <= kTileRows.
template <class Op, int kTileRows, int kStrips>
inline void Tile(int64_t tile_rows, const GemmArgs& args, const Piece& piece, int64_t pass,
                 int64_t row, int64_t strip, int64_t column) {
  if (tile_rows == kTileRows) {
    Micro<Op, kTileRows, kStrips>(args, piece, pass, row, strip, column);
  } else if constexpr (kTileRows > 1) {
    Tile<Op, kTileRows - 1, kStrips>(tile_rows, args, piece, pass, row, strip, column);
  }
}

// `rows` rows from row `pass` on in tiles of even size.
template <class Op, int kStrips>
inline void Tiles(const GemmArgs& args, const Piece& piece, int64_t pass, int64_t rows,
                  int64_t strip, int64_t column) {
  constexpr int64_t kTileRows = Op::kRows[kStrips];
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t begin = rows * t / tiles;
    const int64_t end = rows * (t + 1) / tiles;
    Tile<Op, Op::kRows[kStrips], kStrips>(end - begin, args, piece, pass, begin, strip, column);
  }
}

// Strips [strip, strip + count) of one panel, at most `most` at a time.
template <class Op>
inline void PanelStrips(const GemmArgs& args, const Piece& piece, int64_t pass, int64_t rows,
                        int64_t strip, int64_t count, int64_t column, int64_t most) {
  while (count > 0) {
    int64_t n = std::min(count, most);
    while (Op::kRows[n] == 0) {
      --n;
    }
    switch (n) {
      case 4:
        if constexpr (Op::kRows[4] > 0) {
          Tiles<Op, 4>(args, piece, pass, rows, strip, column);
        }
        break;
      case 3:
        if constexpr (Op::kRows[3] > 0) {
          Tiles<Op, 3>(args, piece, pass, rows, strip, column);
        }
        break;
      case 2:
        if constexpr (Op::kRows[2] > 0) {
          Tiles<Op, 2>(args, piece, pass, rows, strip, column);
        }
        break;
      default:
        Tiles<Op, 1>(args, piece, pass, rows, strip, column);
        break;
    }
    strip += n;
    column += n * kStrip;
    count -= n;
  }
}

// Where weights come from memory and several tiles pass a block, the first tile waits for it and
// the others would leave the memory idle: they fetch the next block. So does a lone tile whose
// words take long to unpack. With many tiles it would only cost; one row reads as fast as it can.
template <class Op>
inline int64_t Ahead(int64_t rows, const Piece& piece) {
  constexpr int64_t kManyRows = 64;
  if (rows > kFewRows && (Op::kStripOuter || rows <= kManyRows)) {
    return piece.groups * piece.width * static_cast<int64_t>(Op::kWordBytes);
  }
  return Op::kStripOuter ? 4096 : 0;
}

template <class Op>
void Gemm(const GemmArgs& args, int64_t strip_begin, int64_t strip_end) {
  alignas(64) float sums[kPassRows * kPanelColumns];
  const int64_t all_strips = (args.columns + kStrip - 1) / kStrip;
  const int64_t groups = args.some_groups == 0 ? args.groups : args.some_groups;
  // With few rows a tile takes more strips, so that enough sums are in flight.
  int64_t most = kPanelStrips;
  while (most > 1 && (Op::kRows[most] == 0 || (args.rows > Op::kRows[most] && !Op::kWide))) {
    --most;
  }
  for (int64_t pass = 0; pass < args.rows; pass += kPassRows) {
    const int64_t rows = std::min(kPassRows, args.rows - pass);
    for (int64_t s = strip_begin; s < strip_end;) {
      const int64_t panel = s / kPanelStrips;
      const int64_t local = s - panel * kPanelStrips;
      Piece piece;
      piece.sums = sums;
      piece.width = std::min(kPanelStrips, all_strips - panel * kPanelStrips);
      const int64_t count = std::min(strip_end - s, piece.width - local);
      const std::byte* data =
          args.w + (panel * kPanelStrips * args.groups + args.first_group * piece.width) *
                       static_cast<int64_t>(Op::kWordBytes);
      for (int64_t g = 0, block = 0; g < groups; g += args.block_groups, ++block) {
        piece.a = args.a + block * args.block_stride;
        piece.w = data + g * piece.width * static_cast<int64_t>(Op::kWordBytes);
        piece.groups = std::min(args.block_groups, groups - g);
        piece.first = g == 0;
        piece.last = g + piece.groups == groups;
        piece.ahead = Ahead<Op>(args.rows, piece);
        PanelStrips<Op>(args, piece, pass, rows, local, count, s * kStrip, most);
      }
      s += count;
    }
  }
}
