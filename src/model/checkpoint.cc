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

void touch_all(const ModelFile& file, const LoadProgress& progress) {
  int64_t total = 0, done = 0;
  for (const MappedFile* f : file.files()) total += f->bytes();
  for (const MappedFile* f : file.files()) {
    for (int64_t at = 0; at < f->bytes(); at += kTouchBytes) {
      const int64_t n = std::min(f->bytes() - at, kTouchBytes);
      touch_pages(f->data() + at, n);
      done += n;
      if (progress.report) progress.report(done, total);
    }
  }
}

std::vector<int32_t> end_ids(const text::VocabSpec& vocab) {
  std::vector<int32_t> ids;
  for (const int32_t id : {vocab.eos, vocab.eot, vocab.eom}) {
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

Status check_architecture(const std::string& path, const std::string& architecture) {
  if (find_family(architecture) != nullptr) return ok();
  return unsupported(format("{}: architecture {} is not in this build, expected one of: {}",
                            path,
                            quoted(architecture),
                            architecture_names()));
}

Status check_vocab(const ModelFile& file, int64_t tokens, int64_t rows) {
  if (tokens <= rows) return ok();
  return invalid(
      format("{}: the vocabulary has {} tokens, but the embedding has {} rows, expected at least as many",
             file.path(),
             tokens,
             rows));
}

Status read_text(Checkpoint& out) {
  const Gguf* gguf = out.file.gguf();
  if (gguf == nullptr) return out.file.refuse("the vocabulary of a folder is not read by this build");
  SE_ASSIGN(out.vocab, read_vocab(*gguf));
  SE_ASSIGN(out.chat_template, gguf->string("tokenizer.chat_template", ""));
  out.end_ids = end_ids(out.vocab);
  return check_vocab(out.file, int64_t(out.vocab.tokens.size()), out.model->shape().vocab);
}

Result<Checkpoint> load(const std::string& path, const LoadProgress& progress) {
  Checkpoint out;
  SE_ASSIGN(LoadedModel loaded, load_model(path));
  out.file = std::move(loaded.file), out.model = std::move(loaded.model);
  SE_TRY(read_text(out));
  touch_all(out.file, progress);
  return out;
}

}  // namespace

Result<LoadedModel> load_model(const std::string& path) {
  LoadedModel out;
  SE_ASSIGN(out.file, ModelFile::open(path, check_architecture));
  SE_ASSIGN(out.model, find_family(out.file.config().architecture)->load(out.file));
  return out;
}

Result<Checkpoint> load_checkpoint(const std::string& path, const LoadProgress& progress) {
  try {
    return load(path, progress);
  } catch (const std::exception& e) {  // bad_alloc on metadata as large as memory
    return exhausted(format("{}: cannot load: {}", path, e.what()));
  }
}

}  // namespace se
