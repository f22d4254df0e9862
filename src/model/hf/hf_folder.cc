#include "model/hf/hf_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "base/fmt.h"
#include "base/quoted.h"
#include "model/hf/hf_config.h"
#include "model/hf/hf_tensors.h"
#include "model/hf/json_file.h"

namespace se {
namespace {

constexpr int64_t kMaxConfig = int64_t(4) << 20, kMaxIndex = int64_t(32) << 20;
constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

Status read_optional(
    const JsonObject& o, const char* key, double min, double max, std::optional<double>& out) {
  if (!o.has(key)) return ok();
  SE_ASSIGN(out, o.number(key, min, max));
  return ok();
}

void join(const std::vector<int64_t>& ids, std::vector<int32_t>& all) {
  for (const int64_t id : ids) {
    if (std::find(all.begin(), all.end(), int32_t(id)) == all.end()) all.push_back(int32_t(id));
  }
}

Status read_generation(const std::string& path, HfFolder& out) {
  if (!exists(path)) return ok();
  SE_ASSIGN(const JsonObject file, JsonObject::open(path, kMaxConfig));
  SE_ASSIGN(const std::vector<int64_t> ends, file.integers("eos_token_id", 0, INT32_MAX));
  join(ends, out.end_ids);
  GenerationDefaults& d = out.defaults;
  SE_TRY(read_optional(file, "temperature", 0, 1e6, d.temperature));
  SE_TRY(read_optional(file, "top_p", 0, 1, d.top_p));
  SE_TRY(read_optional(file, "min_p", 0, 1, d.min_p));
  SE_TRY(read_optional(file, "repetition_penalty", 0, 1e6, d.repetition_penalty));
  if (file.has("top_k")) {
    SE_ASSIGN(d.top_k, file.integer("top_k", 0, INT32_MAX));
  }
  return ok();
}

Status read_config(const std::string& path, const ArchitectureCheck& check, HfFolder& out) {
  SE_ASSIGN(const JsonObject file, JsonObject::open(path + "/config.json", kMaxConfig));
  SE_ASSIGN(const JsonObject inner, language_config(file));
  SE_ASSIGN(const std::string type, inner.string("model_type"));
  SE_TRY(check(path, architecture_of(type)));
  SE_ASSIGN(out.config, read_hf_config(file, inner));
  const size_t end = path.find_last_not_of('/');
  const size_t slash = path.find_last_of('/', end);
  out.config.name = path.substr(slash == std::string::npos ? 0 : slash + 1, end - slash);
  const JsonObject& ends = inner.has("eos_token_id") ? inner : file;
  SE_ASSIGN(const std::vector<int64_t> ids, ends.integers("eos_token_id", 0, INT32_MAX));
  join(ids, out.end_ids);
  return read_generation(path + "/generation_config.json", out);
}

// A name out of the index: it must not lead out of the folder.
Status check_shard_name(const JsonObject& map, const std::string& tensor, const std::string& name) {
  if (name.ends_with(".safetensors") && name.find('/') == std::string::npos &&
      name.find('\0') == std::string::npos)
    return ok();
  return map.bad(tensor,
                 format("is in {}, expected a .safetensors file in the same folder", se::quoted(name)));
}

Status read_shards(const std::string& path, HfFolder& out, HfTensors& tensors) {
  SE_ASSIGN(const JsonObject index, JsonObject::open(path + "/" + kIndex, kMaxIndex));
  SE_ASSIGN(const JsonObject map, index.object("weight_map"));
  const std::vector<std::string> names = map.keys();
  std::set<std::string> files;
  for (const std::string& tensor : names) {
    SE_ASSIGN(const std::string file, map.string(tensor));
    SE_TRY(check_shard_name(map, tensor, file));
    files.insert(file);
  }
  for (const std::string& file : files) {
    SE_ASSIGN(Safetensors shard, Safetensors::open(path + "/" + file));
    out.shards.push_back(std::make_unique<Safetensors>(std::move(shard)));
    SE_TRY(tensors.add(*out.shards.back()));
  }
  for (const std::string& tensor : names) {
    if (!tensors.has(tensor)) return map.bad(tensor, "is in none of the files, expected it in the one named");
  }
  return ok();
}

}  // namespace

Result<HfFolder> read_hf_folder(const std::string& path, const ArchitectureCheck& check) {
  HfFolder out;
  SE_TRY(read_config(path, check, out));
  HfTensors tensors(out.config);
  const std::string whole = path + "/" + kWhole;
  if (exists(path + "/" + kIndex)) {
    SE_TRY(read_shards(path, out, tensors));
  } else if (exists(whole)) {
    SE_ASSIGN(Safetensors file, Safetensors::open(whole));
    out.shards.push_back(std::make_unique<Safetensors>(std::move(file)));
    SE_TRY(tensors.add(*out.shards.back()));
  } else {
    return not_found(format("{}: holds neither {} nor {}", path, kWhole, kIndex));
  }
  SE_ASSIGN(out.tensors, tensors.take());
  return out;
}

}  // namespace se
