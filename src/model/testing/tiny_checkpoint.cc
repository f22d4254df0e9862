#include "model/testing/tiny_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/rng.h"

namespace se {
namespace {

constexpr const char* kGoldens = "tests/goldens/families";

uint64_t fnv1a(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : name) h = (h ^ uint8_t(c)) * 0x100000001b3u;
  return h;
}

std::vector<float> values(uint64_t seed, const std::string& name, int64_t n, double mean, double deviation) {
  std::vector<float> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) {
    uint64_t sum = 0;
    for (const uint32_t word : philox(seed, fnv1a(name), i)) sum += word;
    const double z = (double(sum) * 0x1p-32 - 2.0) * std::sqrt(3.0);
    out[i] = float(mean + deviation * z);
  }
  return out;
}

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return n;
}

// model.layers.1.mlp.experts.3.up_proj.weight -> its stem "model.layers.1.mlp.experts." and "up_proj"; empty:
// no expert.
struct ExpertName {
  std::string stem, role;
  int index = 0;
};
ExpertName expert_name(const std::string& name) {
  const size_t at = name.find(".experts.");
  if (at == std::string::npos) return {};
  const size_t number = at + 9, dot = name.find('.', number);
  return {name.substr(0, number),
          name.substr(dot + 1, name.rfind('.') - dot - 1),
          std::stoi(name.substr(number, dot - number))};
}

// Experts put together: gate_up_proj [experts, 2 ffn, hidden] (gate above up) and down_proj.
std::vector<TinyTensor> fuse(const std::vector<TinyTensor>& tensors) {
  std::vector<TinyTensor> out;
  std::map<std::string, std::map<int, std::map<std::string, const TinyTensor*>>> experts;
  for (const TinyTensor& t : tensors) {
    const ExpertName e = expert_name(t.name);
    if (e.stem.empty()) {
      out.push_back(t);
    } else {
      experts[e.stem][e.index][e.role] = &t;
    }
  }
  for (auto& [stem, layer] : experts) {
    TinyTensor gate_up, down;
    gate_up.name = stem + "gate_up_proj", down.name = stem + "down_proj";
    for (auto& [index, roles] : layer) {
      for (const char* role : {"gate_proj", "up_proj"})
        gate_up.values.insert(gate_up.values.end(), roles[role]->values.begin(), roles[role]->values.end());
      down.values.insert(
          down.values.end(), roles["down_proj"]->values.begin(), roles["down_proj"]->values.end());
    }
    const int64_t n = int64_t(layer.size());
    const std::vector<int64_t>& shape = layer.begin()->second["down_proj"]->shape;  // [hidden, ffn]
    gate_up.shape = {n, 2 * shape[1], shape[0]}, down.shape = {n, shape[0], shape[1]};
    for (TinyTensor* t : {&gate_up, &down}) {
      t->data = encode_tiny(DType::kF32, t->values);
      out.push_back(std::move(*t));
    }
  }
  return out;
}

}  // namespace

TinyCheckpoint TinyCheckpoint::load(const std::string& name) {
  std::ifstream in(std::string(kGoldens) + "/" + name + ".json");
  SE_CHECK(in.good(), "no tiny checkpoint {} in {}", name, kGoldens);
  const nlohmann::json file = nlohmann::json::parse(in);
  TinyCheckpoint out;
  out.name = name, out.config = file.at("config").dump(1), out.seed = file.at("seed").get<uint64_t>();
  for (const auto& [tensor, of] : file.at("tensors").items()) {
    TinyTensor t;
    t.name = tensor, t.shape = of.at(0).get<std::vector<int64_t>>();
    t.values = values(out.seed, tensor, product(t.shape), of.at(1).get<double>(), of.at(2).get<double>());
    t.data = encode_tiny(DType::kF32, t.values);
    out.tensors.push_back(std::move(t));
  }
  return out;
}

std::vector<int32_t> TinyCheckpoint::ids(int64_t count) const {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(int32_t(philox(seed, fnv1a("token ids"), uint64_t(i))[0] % uint32_t(kTinyVocab)));
  return out;
}

void TinyCheckpoint::write_folder(const TempFolder& folder, bool fused) const {
  SafetensorsWriter writer;
  const std::vector<TinyTensor> stored = fused ? fuse(tensors) : tensors;
  for (const TinyTensor& t : stored) writer.tensor(t.name, t.dtype, t.shape, t.data);
  folder.write("config.json", config);
  folder.write("model.safetensors", writer.bytes());
}

std::vector<std::string> tiny_checkpoint_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldens)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace se
