// model/testing/gguf_writer.h -- writes small GGUF files for tests, and broken ones byte by byte.
#pragma once
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/tensor.h"
#include "model/gguf.h"

namespace se {

// Little-endian values in a row; the pieces a GGUF file is made of.
class GgufBytes {
 public:
  template <typename T>
  GgufBytes& put(T value) {
    data_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& text(std::string_view s) {  // length and bytes
    put(uint64_t(s.size()));
    data_.append(s);
    return *this;
  }
  GgufBytes& raw(std::string_view s) {
    data_.append(s);
    return *this;
  }
  const std::string& data() const { return data_; }

 private:
  std::string data_;
};

// Keys and tensors in the order of their first mention; naming one again replaces it.
class GgufWriter {
 public:
  void set(const std::string& key, uint32_t value) { put(key, GgufType::kU32, GgufBytes().put(value)); }
  void set(const std::string& key, int32_t value) { put(key, GgufType::kI32, GgufBytes().put(value)); }
  void set(const std::string& key, uint64_t value) { put(key, GgufType::kU64, GgufBytes().put(value)); }
  void set(const std::string& key, float value) { put(key, GgufType::kF32, GgufBytes().put(value)); }
  void set(const std::string& key, bool value) { put(key, GgufType::kBool, GgufBytes().put(uint8_t(value))); }
  void set(const std::string& key, const std::string& value) {
    put(key, GgufType::kString, GgufBytes().text(value));
  }
  void set(const std::string& key, const char* value) { set(key, std::string(value)); }
  void set(const std::string& key, const std::vector<std::string>& values);
  void set(const std::string& key, const std::vector<int32_t>& values);
  void set(const std::string& key, const std::vector<float>& values);
  void erase(const std::string& key);

  // shape row-major (written reversed); data is the tensor's bytes.
  void tensor(const std::string& name, DType dtype, std::vector<int64_t> shape, std::string data);
  void erase_tensor(const std::string& name);

  std::string bytes(uint32_t version = 3, int64_t alignment = 32) const;
  Status write(const std::string& path) const;

 private:
  struct Key {
    std::string name;
    GgufType type;
    std::string payload;
  };
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::string data;
  };
  void put(const std::string& key, GgufType type, const GgufBytes& payload);
  std::vector<Key> keys_;
  std::vector<Tensor> tensors_;
};

// Type ids of GGUF for the types our tests write; others abort.
uint32_t gguf_type_id(DType dtype);
Status write_file(const std::string& path, std::string_view bytes);

// A file in the system's folder for temporary files; gone with the object.
class TempFile {
 public:
  explicit TempFile(std::string_view bytes);
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace se
