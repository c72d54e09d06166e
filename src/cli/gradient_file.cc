#include "cli/gradient_file.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "weights/folder_names.h"
#include "weights/shapes.h"

namespace penstock::cli {
namespace {

struct Written {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t n : shape) {
    elements *= n;
  }
  return elements;
}

// One number per head, in front of zeros that mean nothing and have no gradient (Kimi K3).
bool Padded(const model::WeightTensor& tensor, const weights::StoredTensor& stored) {
  return tensor.name.ends_with(".A_log") && stored.elements > Elements(tensor.shape);
}

// Puts one canonical tensor where the folder has it.
Result<> Place(const model::WeightTensor& tensor, const weights::ModelFiles& files,
               const std::vector<float>* gradient, std::map<std::string, Written>& out) {
  std::string name = tensor.name;
  std::vector<int64_t> shape = tensor.shape;
  int64_t begin = 0;
  if (files.kind() == weights::ModelKind::kFolder) {
    for (const weights::FolderPlace& place : weights::FolderPlaces(tensor.name)) {
      const auto stored =
          std::find_if(files.tensors().begin(), files.tensors().end(),
                       [&](const weights::StoredTensor& t) { return t.name == place.name; });
      if (stored == files.tensors().end()) {
        continue;
      }
      name = stored->name;
      shape = stored->shape;
      if (Padded(tensor, *stored)) {
        break;
      }
      PENSTOCK_TRY_ASSIGN(
          const weights::Rows rows,
          weights::RowsOf(*stored, files.path(), tensor.name, tensor.shape, place.part));
      begin = rows.begin * rows.columns;
      break;
    }
  }
  Written& written = out[name];
  if (written.values.empty()) {
    written.shape = shape;
    written.values.assign(static_cast<size_t>(Elements(shape)), 0.0F);
  }
  if (gradient != nullptr) {
    PENSTOCK_CHECK(begin + std::ssize(*gradient) <= std::ssize(written.values),
                   "the part lies inside its tensor");
    std::copy(gradient->begin(), gradient->end(), written.values.begin() + begin);
  }
  return {};
}

}  // namespace

Result<> WriteGradients(const std::string& path, const model::Graph& graph,
                        const weights::ModelFiles& files,
                        const std::map<std::string, std::vector<float>>& gradients) {
  std::map<std::string, Written> out;
  for (const model::WeightTensor& tensor : graph.tensors) {
    const auto gradient = gradients.find(tensor.name);
    PENSTOCK_TRY(
        Place(tensor, files, gradient == gradients.end() ? nullptr : &gradient->second, out));
  }
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  size_t offset = 0;
  for (const auto& [name, written] : out) {
    const size_t bytes = written.values.size() * sizeof(float);
    header[name] = {
        {"dtype", "F32"}, {"shape", written.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string content(8, '\0');
  const uint64_t length = text.size();
  std::memcpy(content.data(), &length, sizeof length);
  content += text;
  content.reserve(content.size() + offset);
  for (const auto& [name, written] : out) {
    content.append(reinterpret_cast<const char*>(written.values.data()),
                   written.values.size() * sizeof(float));
  }
  return WriteFileAtomically(path, content);
}

}  // namespace penstock::cli
