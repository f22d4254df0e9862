// model/families/llama/llama_reference.h -- the graph of spec/models.md 4.1 in double, one token after the
// other, from the values the test wrote. Shares no code with the model: for tests.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/testing/tiny_llama.h"

namespace se::llama {

class Reference {
 public:
  explicit Reference(const TinyLlamaOptions& options);
  // Logits [ids, vocab] of a whole sequence.
  std::vector<double> forward(const std::vector<int32_t>& ids) const;

 private:
  using Vector = std::vector<double>;
  Vector linear(const std::string& name, const Vector& x) const;  // adds NAME.bias where there is one
  Vector norm(const std::string& name, const Vector& x) const;
  void rope(Vector& heads, int64_t position) const;
  Vector attention(const Vector& q, const std::vector<Vector>& keys, const std::vector<Vector>& values) const;
  const TinyTensor& tensor(const std::string& name) const { return tensors_.at(name); }

  TinyLlamaOptions o_;
  std::map<std::string, TinyTensor> tensors_;
};

}  // namespace se::llama
