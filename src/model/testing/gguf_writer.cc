#include "model/testing/gguf_writer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>

namespace se {
namespace {

int64_t align_up(int64_t n, int64_t alignment) { return (n + alignment - 1) / alignment * alignment; }

GgufBytes array(GgufType element, size_t count) {
  return GgufBytes().put(uint32_t(element)).put(uint64_t(count));
}

}  // namespace

uint32_t gguf_type_id(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_1:
      return 3;
    case DType::kQ8_0:
      return 8;
    case DType::kI32:
      return 26;
    default:
      break;
  }
  SE_CHECK(false, "the test writer has no {}", to_string(dtype));
  return 0;
}

void GgufWriter::put(const std::string& key, GgufType type, const GgufBytes& payload) {
  for (Key& k : keys_) {
    if (k.name != key) continue;
    k.type = type, k.payload = payload.data();
    return;
  }
  keys_.push_back({key, type, payload.data()});
}

void GgufWriter::set(const std::string& key, const std::vector<std::string>& values) {
  GgufBytes out = array(GgufType::kString, values.size());
  for (const std::string& v : values) out.text(v);
  put(key, GgufType::kArray, out);
}

void GgufWriter::set(const std::string& key, const std::vector<int32_t>& values) {
  GgufBytes out = array(GgufType::kI32, values.size());
  for (const int32_t v : values) out.put(v);
  put(key, GgufType::kArray, out);
}

void GgufWriter::set(const std::string& key, const std::vector<float>& values) {
  GgufBytes out = array(GgufType::kF32, values.size());
  for (const float v : values) out.put(v);
  put(key, GgufType::kArray, out);
}

void GgufWriter::erase(const std::string& key) {
  std::erase_if(keys_, [&](const Key& k) { return k.name == key; });
}

void GgufWriter::tensor(const std::string& name, DType dtype, std::vector<int64_t> shape, std::string data) {
  Tensor made{name, dtype, std::move(shape), std::move(data)};
  const auto it =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; });
  if (it != tensors_.end()) {
    *it = std::move(made);
  } else {
    tensors_.push_back(std::move(made));
  }
}

void GgufWriter::erase_tensor(const std::string& name) {
  std::erase_if(tensors_, [&](const Tensor& t) { return t.name == name; });
}

std::string GgufWriter::bytes(uint32_t version, int64_t alignment) const {
  GgufBytes out;
  out.raw("GGUF").put(version).put(uint64_t(tensors_.size())).put(uint64_t(keys_.size()));
  for (const Key& k : keys_) out.text(k.name).put(uint32_t(k.type)).raw(k.payload);
  int64_t offset = 0;
  for (const Tensor& t : tensors_) {
    out.text(t.name).put(uint32_t(t.shape.size()));
    for (size_t d = t.shape.size(); d-- > 0;) out.put(uint64_t(t.shape[d]));
    out.put(gguf_type_id(t.dtype)).put(uint64_t(offset));
    offset = align_up(offset + int64_t(t.data.size()), alignment);
  }
  std::string file = out.data();
  for (const Tensor& t : tensors_) {
    file.resize(size_t(align_up(int64_t(file.size()), alignment)));
    file += t.data;
  }
  return file;
}

Status write_file(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), std::streamsize(bytes.size()));
  out.close();
  return out.good() ? ok() : io_error(format("{}: cannot write {} bytes", path, bytes.size()));
}

TempFile::TempFile(std::string_view bytes) {
  static std::atomic<int> next{0};
  const std::string name = format("se_test_{}_{}.gguf", getpid(), next++);
  path_ = (std::filesystem::temp_directory_path() / name).string();
  const Status written = write_file(path_, bytes);
  SE_CHECK(written.ok(), "{}", written.message());
}

TempFile::~TempFile() { unlink(path_.c_str()); }

Status GgufWriter::write(const std::string& path) const { return write_file(path, bytes()); }

}  // namespace se
