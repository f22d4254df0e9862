#include "model/checkpoint.h"

#include <algorithm>
#include <exception>

#include "base/fmt.h"
#include "model/family.h"
#include "model/gguf.h"
#include "model/gguf_vocab.h"

namespace se {
namespace {

constexpr int64_t kTouchBytes = int64_t(8) << 20;  // between two reports

void touch_all(const uint8_t* mapped, int64_t bytes, const LoadProgress& progress) {
  for (int64_t at = 0; at < bytes;) {
    const int64_t end = std::min(bytes, at + kTouchBytes);
    touch_pages(mapped + at, end - at);
    at = end;
    if (progress.report) progress.report(at, bytes);
  }
}

std::vector<int32_t> end_ids(const text::VocabSpec& vocab) {
  std::vector<int32_t> ids;
  for (const int32_t id : {vocab.eos, vocab.eot, vocab.eom}) {
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

Result<Checkpoint> load(const std::string& path, const LoadProgress& progress) {
  SE_ASSIGN(Gguf file, Gguf::open(path));
  SE_ASSIGN(const std::string architecture, file.string("general.architecture"));
  const FamilyEntry* family = find_family(architecture);
  if (family == nullptr) {
    return unsupported(format("{}: architecture {} is not in this build, expected one of: {}",
                              path,
                              quoted(architecture),
                              architecture_names()));
  }
  Checkpoint out;
  SE_ASSIGN(out.vocab, read_vocab(file));
  SE_ASSIGN(out.chat_template, file.string("tokenizer.chat_template", ""));
  out.end_ids = end_ids(out.vocab);
  const uint8_t* mapped = file.file().data();  // keeps its address when the file moves into the model
  const int64_t bytes = file.file().bytes();
  SE_ASSIGN(out.model, family->load(std::move(file)));
  const int64_t rows = out.model->shape().vocab;
  if (int64_t(out.vocab.tokens.size()) > rows) {
    return invalid(
        format("{}: the vocabulary has {} tokens, but the embedding has {} rows, expected at least as many",
               path,
               out.vocab.tokens.size(),
               rows));
  }
  touch_all(mapped, bytes, progress);
  return out;
}

}  // namespace

Result<Checkpoint> load_checkpoint(const std::string& path, const LoadProgress& progress) {
  try {
    return load(path, progress);
  } catch (const std::exception& e) {  // bad_alloc on metadata as large as memory
    return exhausted(format("{}: cannot load: {}", path, e.what()));
  }
}

}  // namespace se
