#include "model/model_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "base/fmt.h"
#include "base/quoted.h"
#include "device/cpu/thread_pool.h"
#include "kernels/linear/linear.h"
#include "model/gguf_config.h"
#include "model/hf/hf_folder.h"

namespace se {
namespace {

constexpr std::string_view kExperts = "_exps.weight", kGateUp = "ffn_gate_up_exps.weight";

StoredTensor stored(const Gguf& file, const GgufTensor& t) {
  return {t.name, &file.file(), t.offset, t.bytes, file.view(t), {}};
}

// Part of `whole` that begins at `view`.
StoredTensor part_of(const StoredTensor& whole, const TensorView& view) {
  StoredTensor part = whole;
  part.offset += view.ptr<char>() - whole.view.ptr<char>();
  part.view = view;
  part.bytes = bytes_of(view.dtype, view.numel());
  return part;
}

}  // namespace

Status StoredTensor::bad(const std::string& text) const {
  return invalid(format("{}: byte {}: tensor {} {}", file->path(), offset, quoted(name), text));
}

ModelTensor split_experts(std::string name, const StoredTensor& whole, int64_t begin, int64_t end) {
  ModelTensor out{std::move(name), {}, true, false};
  for (int64_t e = 0; e < whole.view.shape[0]; ++e)
    out.parts.push_back(part_of(whole, whole.view.index(e).slice(begin, end)));
  return out;
}

ModelFile::ModelFile() = default;
ModelFile::ModelFile(ModelFile&&) noexcept = default;
ModelFile& ModelFile::operator=(ModelFile&&) noexcept = default;
ModelFile::~ModelFile() = default;

void ModelFile::Free::operator()(std::byte* p) const { std::free(p); }

Result<std::byte*> ModelFile::own(int64_t bytes) {
  constexpr size_t kAlign = 64;
  const size_t padded = (size_t(std::max<int64_t>(bytes, 1)) + kAlign - 1) / kAlign * kAlign;
  void* p = std::aligned_alloc(kAlign, padded);
  if (p == nullptr) return exhausted(format("{}: no memory for {} bytes of weights", path_, bytes));
  owned_.emplace_back(static_cast<std::byte*>(p));
  owned_bytes_ += bytes;
  return owned_.back().get();
}

Result<std::byte*> ModelFile::pack_later(const TensorView& w, int64_t bytes) {
  constexpr int64_t kPiece = int64_t(256) << 20, kAlign = 64;
  const int64_t padded = (bytes + kAlign - 1) / kAlign * kAlign;
  if (packed_.empty() || packed_used_ + padded > packed_.back().bytes()) {
    auto piece = Buffer::allocate(std::max(padded, kPiece));
    if (!piece.ok()) return exhausted(format("{}: no memory for {} bytes of packed weights", path_, padded));
    packed_.push_back(piece.take());
    packed_used_ = 0;
  }
  std::byte* to = reinterpret_cast<std::byte*>(packed_.back().data()) + packed_used_;
  packed_used_ += padded, packed_bytes_ += bytes;
  packings_.push_back({w, to});
  return to;
}

void ModelFile::pack(int threads) {
  constexpr int64_t kPanels = 32;  // of an item: some hundred KiB
  ThreadPool pool(threads > 0 ? threads : available_cores());
  struct Item {
    const Packing* packing;
    int64_t begin, end;
  };
  std::vector<Item> items;  // those of a node together
  std::vector<int64_t> begins{0};
  for (int node = 0; node < pool.nodes(); ++node) {
    for (const Packing& p : packings_) {
      const int64_t panels = packed_panels(p.from), end = pool.share_begin(node + 1, panels);
      for (int64_t at = pool.share_begin(node, panels); at < end; at += kPanels)
        items.push_back({&p, at, std::min(at + kPanels, end)});
    }
    begins.push_back(int64_t(items.size()));
  }
  const OnCpus bound = pool.bind_caller();
  pool.run(begins, [&](int64_t i, int) {
    const Item& item = items[size_t(i)];
    se::pack(item.packing->from, item.begin, item.end, item.packing->to);
  });
}

void ModelFile::release_packed() const {
  for (const Packing& p : packings_) {
    const uint8_t* data = p.from.ptr<uint8_t>();
    for (const MappedFile* file : files_) {
      if (data >= file->data() && data < file->data() + file->bytes())
        file->release(data - file->data(), bytes_of(p.from.dtype, p.from.numel()));
    }
  }
}

Status ModelFile::check() const {
  for (const MappedFile* file : files_) SE_TRY(file->check());
  return ok();
}

const ModelTensor* ModelFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Status ModelFile::add(ModelTensor tensor) {
  const auto [it, is_new] = index_.emplace(tensor.name, tensors_.size());
  if (!is_new) {
    const StoredTensor& here = tensor.parts.front();
    return here.bad(format("is {}, and so is {}: expected one of them",
                           quoted(tensor.name),
                           quoted(tensors_[it->second].parts.front().name)));
  }
  tensors_.push_back(std::move(tensor));
  return ok();
}

Result<ModelFile> ModelFile::open(const std::string& path, const ArchitectureCheck& check) {
  struct stat info {};
  const bool folder = ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  return folder ? open_folder(path, check) : open_gguf(path, check);
}

Result<ModelFile> ModelFile::open_folder(const std::string& path, const ArchitectureCheck& check) {
  SE_ASSIGN(HfFolder folder, read_hf_folder(path, check));
  ModelFile out;
  out.path_ = path;
  out.config_ = std::move(folder.config);
  out.end_ids_ = std::move(folder.end_ids);
  out.defaults_ = folder.defaults;
  for (auto& shard : folder.shards) {
    out.files_.push_back(&shard->file());
    out.shards_.push_back(std::move(shard));
  }
  for (ModelTensor& tensor : folder.tensors) SE_TRY(out.add(std::move(tensor)));
  return out;
}

Result<ModelFile> ModelFile::open_gguf(const std::string& path, const ArchitectureCheck& check) {
  ModelFile out;
  out.path_ = path;
  SE_ASSIGN(Gguf file, Gguf::open(path));
  out.gguf_ = std::make_unique<Gguf>(std::move(file));
  const Gguf& gguf = *out.gguf_;
  out.files_.push_back(&gguf.file());
  SE_ASSIGN(const std::string architecture, gguf.string("general.architecture"));
  SE_TRY(check(path, architecture));
  SE_ASSIGN(out.config_, read_gguf_config(gguf));
  for (const GgufTensor& t : gguf.tensors()) {
    const StoredTensor whole = stored(gguf, t);
    const int64_t rows = whole.view.rank == 3 ? whole.view.shape[1] : 0;
    if (rows == 0 || !t.name.ends_with(kExperts)) {
      SE_TRY(out.add({t.name, {whole}, false, false}));
    } else if (!t.name.ends_with(kGateUp)) {
      SE_TRY(out.add(split_experts(t.name, whole, 0, rows)));
    } else {  // rows of gate, then rows of up
      if (rows % 2 != 0)
        return whole.bad(format("is {}, expected an even number of rows", to_string(whole.view)));
      const std::string block = t.name.substr(0, t.name.size() - kGateUp.size());
      SE_TRY(out.add(split_experts(block + "ffn_gate_exps.weight", whole, 0, rows / 2)));
      SE_TRY(out.add(split_experts(block + "ffn_up_exps.weight", whole, rows / 2, rows)));
    }
  }
  return out;
}

}  // namespace se
