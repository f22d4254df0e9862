// model/testing/safetensors_writer.h -- writes small model folders for tests, and broken ones.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "device/tensor.h"

namespace se {

// Tensors in the order of their first mention; naming one again replaces it.
class SafetensorsWriter {
 public:
  // shape row-major; data is the tensor's bytes.
  void tensor(const std::string& name, DType dtype, std::vector<int64_t> shape, std::string data);
  void erase(const std::string& name);
  std::string bytes() const;
  std::vector<std::string> names() const;
  // each(name, shape, data) for every tensor.
  template <typename F>
  void each(F f) const {
    for (const Tensor& t : tensors_) f(t.name, t.shape, t.data);
  }

 private:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::string data;
  };
  std::vector<Tensor> tensors_;
};

// u64 length, header, data: what a file is made of.
std::string safetensors_bytes(std::string_view header, std::string_view data);

// An empty folder in the system's folder for temporary files; gone with the object, with all that is in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  void write(const std::string& name, std::string_view bytes) const;

 private:
  std::string path_;
};

}  // namespace se
