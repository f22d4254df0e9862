// model/model_file.h -- a checkpoint as families read it: hyper-parameters and tensors by one set of names
// (those of GGUF, spec/models.md 9.2), with a GGUF file or a Hugging Face folder behind it. Families read
// tensors through Weights (weights.h), which also undoes what the containers do differently. Goals: nothing
// in a file is trusted; weights are used where they lie in the mapping. Non-goals: downloading, writing.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "device/tensor.h"
#include "model/gguf.h"
#include "model/hyper_parameters.h"
#include "model/mapped_file.h"

namespace se {

class Safetensors;

// Bytes of a file that are a tensor, or a part of one.
struct StoredTensor {
  std::string name;  // in the file
  const MappedFile* file = nullptr;
  int64_t offset = 0, bytes = 0;
  TensorView view;    // row-major, any strides, read-only; kF8E4M3 with `scales`
  TensorView scales;  // block-FP8: f32 or bf16 [ceil(rows / 128), ceil(cols / 128)]; else empty
  // "PATH: byte N: tensor 'name' " + text.
  Status bad(const std::string& text) const;
};

// A tensor by its GGUF name.
struct ModelTensor {
  std::string name;
  std::vector<StoredTensor> parts;  // one, or one for each expert in order
  bool stacked = false;             // parts are the experts of [experts, out, in]
  bool minus_one = false;           // norm weights stored as w - 1
};

// What generation_config.json recommends; empty where it does not say (and for GGUF files).
struct GenerationDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
};

// The experts of `whole` [experts, rows, in], rows [begin, end) of each.
ModelTensor split_experts(std::string name, const StoredTensor& whole, int64_t begin, int64_t end);

// Whether this build computes an architecture; asked before anything else of the file is read.
using ArchitectureCheck = std::function<Status(const std::string& path, const std::string& architecture)>;

// Movable; views stay valid. Reading is free for any thread once loading is over.
class ModelFile {
 public:
  ModelFile();  // of nothing
  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;
  ~ModelFile();
  // A GGUF file, or a folder with config.json and model.safetensors (or its index and shards). Errors, one
  // line each: PATH: byte N or key: what was found, what was expected.
  static Result<ModelFile> open(const std::string& path, const ArchitectureCheck& check);

  const std::string& path() const { return path_; }
  const Gguf* gguf() const { return gguf_.get(); }  // null: a folder
  const HyperParameters& config() const { return config_; }
  // Folders: ids that config.json and generation_config.json end generation with.
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  const GenerationDefaults& defaults() const { return defaults_; }

  const std::vector<ModelTensor>& tensors() const { return tensors_; }  // in the order of the file(s)
  const ModelTensor* find(std::string_view name) const;
  const std::vector<const MappedFile*>& files() const { return files_; }

  // Memory that lives as long as this object, for weights that cannot be used as they lie. 64-byte aligned.
  // Errors: kExhausted.
  Result<std::byte*> own(int64_t bytes);
  int64_t owned_bytes() const { return owned_bytes_; }

  // Memory for the packed form of w (kernels/linear/linear.h), which pack() fills; until then it takes
  // address space alone. Errors: kExhausted.
  Result<std::byte*> pack_later(const TensorView& w, int64_t bytes);
  // Once, before the model runs, on as many threads as it will run on (0: all cores that this process may
  // use): with several memory nodes, panels are written, and so lie, near those that will read them.
  void pack(int threads = 0);
  int64_t packed_bytes() const { return packed_bytes_; }
  // Lets the system have the pages of weights that were packed; they come back from the file when read.
  void release_packed() const;

  // kIo once a file behind this has shrunk or could not be read: what was computed since is wrong. A system
  // call for each file; any thread.
  Status check() const;

  // kUnsupported, about something the file says.
  Status refuse(const std::string& text) const { return unsupported(path_ + ": " + text); }

 private:
  static Result<ModelFile> open_gguf(const std::string& path, const ArchitectureCheck& check);
  static Result<ModelFile> open_folder(const std::string& path, const ArchitectureCheck& check);
  Status add(ModelTensor tensor);

  std::string path_;
  std::unique_ptr<Gguf> gguf_;
  std::vector<std::unique_ptr<Safetensors>> shards_;
  std::vector<const MappedFile*> files_;
  HyperParameters config_;
  std::vector<int32_t> end_ids_;
  GenerationDefaults defaults_;
  std::vector<ModelTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::vector<std::unique_ptr<std::byte, Free>> owned_;
  int64_t owned_bytes_ = 0;
  struct Packing {
    TensorView from;
    std::byte* to;
  };
  std::vector<Packing> packings_;
  std::vector<Buffer> packed_;  // large pieces, filled one after another
  int64_t packed_used_ = 0;     // of the last piece
  int64_t packed_bytes_ = 0;
};

}  // namespace se
