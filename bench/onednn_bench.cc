// oneDNN's matrix products on one core, weights packed beforehand as it likes best: what our own
// kernels must be at least as fast as (the table in docs/performance.md). Rows are padded by nobody
// here: each number of rows has its own primitive, the best case for the library.

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <omp.h>

#include <cstring>
#include <dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace penstock::bench {
namespace {

using dnnl::memory;

struct Shape {
  const char* name;
  int64_t outputs;
  int64_t inputs;
};

constexpr Shape kShapes[] = {{"1b_gate_up", 16384, 2048}, {"1b_down", 2048, 8192}};

void Product(benchmark::State& state, memory::data_type weights_type, memory::data_type input_type,
             memory::data_type output_type, const Shape& shape, int64_t rows) {
  omp_set_num_threads(1);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc x_desc({rows, shape.inputs}, input_type, memory::format_tag::ab);
  const memory::desc w_any({shape.inputs, shape.outputs}, weights_type, memory::format_tag::any);
  const memory::desc y_desc({rows, shape.outputs}, output_type, memory::format_tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::desc desc(x_desc, w_any, y_desc);
  const dnnl::matmul::primitive_desc primitive_desc(desc, attributes, engine);
  const dnnl::matmul product(primitive_desc);
  memory x(x_desc, engine);
  memory y(y_desc, engine);
  memory scratch(primitive_desc.scratchpad_desc(), engine);
  const auto fill = [](memory& m, uint8_t byte) {
    std::memset(m.get_data_handle(), byte, m.get_desc().get_size());
  };
  fill(x, 0x11);
  // As many weights as exceed the last cache.
  std::vector<memory> copies;
  size_t bytes = 0;
  while (bytes < (size_t{160} << 20)) {
    copies.emplace_back(primitive_desc.weights_desc(), engine);
    fill(copies.back(), 0x11);
    bytes += copies.back().get_desc().get_size();
  }
  size_t next = 0;
  for (auto _ : state) {
    product.execute(stream, {{DNNL_ARG_SRC, x},
                             {DNNL_ARG_WEIGHTS, copies[next]},
                             {DNNL_ARG_DST, y},
                             {DNNL_ARG_SCRATCHPAD, scratch}});
    stream.wait();
    next = (next + 1) % copies.size();
  }
  state.counters["rate"] =
      benchmark::Counter(2.0 * static_cast<double>(rows * shape.outputs * shape.inputs) *
                             static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
  state.SetLabel(primitive_desc.impl_info_str());
}

void Register() {
  using Type = memory::data_type;
  for (const Shape& shape : kShapes) {
    for (const int64_t rows : {1, 16, 512}) {
      const auto add = [&](const char* name, Type weights, Type input, Type output) {
        benchmark::RegisterBenchmark(
            fmt::format("onednn/{}/{}/{}/1", name, shape.name, rows).c_str(), Product, weights,
            input, output, shape, rows);
      };
      add("f32", Type::f32, Type::f32, Type::f32);
      add("bf16", Type::bf16, Type::bf16, Type::f32);
      add("int8", Type::s8, Type::u8, Type::s32);
    }
  }
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  penstock::bench::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
