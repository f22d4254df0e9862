// model/testing/tiny_tensor.h -- tensors of small random checkpoints, and their bytes as stored.
#pragma once
#include <string>
#include <vector>

#include "device/tensor.h"

namespace se {

struct TinyTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // row-major
  std::vector<float> values;   // what the stored bytes stand for
  std::string data;            // as stored
};

// The bytes of values as kF32, kF16, kBF16, kQ8_0 or kQ4_1 (the last two in whole blocks of 32); the values
// become what the bytes stand for.
std::string encode_tiny(DType dtype, std::vector<float>& values);

}  // namespace se
