#include "model/testing/safetensors_writer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "base/check.h"
#include "base/fmt.h"
#include "model/testing/gguf_writer.h"

namespace se {
namespace {

const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kI64:
      return "I64";
    default:
      SE_CHECK(false, "safetensors_writer does not write {}", to_string(dtype));
      return "";
  }
}

}  // namespace

void SafetensorsWriter::tensor(const std::string& name,
                               DType dtype,
                               std::vector<int64_t> shape,
                               std::string data) {
  const auto it =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; });
  Tensor made{name, dtype, std::move(shape), std::move(data)};
  if (it == tensors_.end()) {
    tensors_.push_back(std::move(made));
  } else {
    *it = std::move(made);
  }
}

void SafetensorsWriter::erase(const std::string& name) {
  std::erase_if(tensors_, [&](const Tensor& t) { return t.name == name; });
}

std::vector<std::string> SafetensorsWriter::names() const {
  std::vector<std::string> out;
  for (const Tensor& t : tensors_) out.push_back(t.name);
  return out;
}

std::string SafetensorsWriter::bytes() const {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const Tensor& t : tensors_) {
    std::string shape;
    for (const int64_t d : t.shape) shape += format("{}{}", shape.empty() ? "" : ",", d);
    header += format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                     t.name,
                     type_name(t.dtype),
                     shape,
                     data.size(),
                     data.size() + t.data.size());
    data += t.data;
  }
  return safetensors_bytes(header + "}", data);
}

std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return GgufBytes().put(uint64_t(header.size())).raw(header).raw(data).data();
}

TempFolder::TempFolder() {
  static std::atomic<int> next{0};
  path_ =
      (std::filesystem::temp_directory_path() / format("se_test_{}_folder_{}", getpid(), next++)).string();
  std::filesystem::create_directory(path_);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TempFolder::write(const std::string& name, std::string_view bytes) const {
  const Status written = write_file(path_ + "/" + name, bytes);
  SE_CHECK(written.ok(), "{}", written.message());
}

}  // namespace se
