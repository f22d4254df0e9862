// base/npy.h -- reads .npy goldens in tests (header-only: the product does not link it).
// C order, little-endian: '<f4', '<i4', '<i8', '|u1', '<u2', '<f2', '|i1'.
#pragma once
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/half.h"

namespace se {

struct Npy {
  std::string dtype;  // "f4", "i4", "i8", "u1", "u2", "f2", "i1"
  std::vector<int64_t> shape;
  std::vector<char> bytes;

  static Npy load(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    SE_CHECK(in.good(), "cannot open {}", path);
    std::vector<char> file((std::istreambuf_iterator<char>(in)), {});
    SE_CHECK(file.size() > 10 && std::memcmp(file.data(), "\x93NUMPY", 6) == 0, "{} is not .npy", path);
    const bool v1 = file[6] == 1;
    uint32_t length = 0;
    std::memcpy(&length, &file[8], v1 ? 2 : 4);
    const size_t start = v1 ? 10 : 12;
    const std::string header(&file[start], length);
    Npy out;
    const size_t d = header.find("'descr': '") + 10;
    out.dtype = header.substr(d + 1, header.find('\'', d) - d - 1);
    SE_CHECK(header.find("'fortran_order': False") != std::string::npos, "{} is not in C order", path);
    size_t p = header.find('(') + 1;
    while (p < header.size() && header[p] != ')') {
      if (header[p] >= '0' && header[p] <= '9') {
        size_t used = 0;
        out.shape.push_back(std::stoll(header.substr(p), &used));
        p += used;
      } else {
        ++p;
      }
    }
    out.bytes.assign(file.begin() + std::ptrdiff_t(start + length), file.end());
    return out;
  }

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  }

  // The values as T, converted element by element.
  template <typename T>
  std::vector<T> as() const {
    std::vector<T> out(static_cast<size_t>(numel()));
    for (size_t i = 0; i < out.size(); ++i) out[i] = element<T>(i);
    return out;
  }

 private:
  template <typename T, typename S>
  T at(size_t i) const {
    S s;
    std::memcpy(&s, bytes.data() + i * sizeof(S), sizeof(S));
    return T(s);
  }
  template <typename T>
  T element(size_t i) const {
    if (dtype == "f4") return at<T, float>(i);
    if (dtype == "i4") return at<T, int32_t>(i);
    if (dtype == "i8") return at<T, int64_t>(i);
    if (dtype == "u1" || dtype == "b1") return at<T, uint8_t>(i);
    if (dtype == "i1") return at<T, int8_t>(i);
    if (dtype == "u2") return at<T, uint16_t>(i);
    SE_CHECK(dtype == "f2", "unsupported .npy dtype {}", dtype);
    return T(f16_to_f32(at<uint16_t, uint16_t>(i)));
  }
};

}  // namespace se
