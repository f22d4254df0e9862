#include "model/checkpoint.h"

#include <algorithm>
#include <exception>

#include "base/fmt.h"
#include "base/quoted.h"
#include "model/check_finite.h"
#include "model/family.h"
#include "model/gguf.h"
#include "model/gguf_vocab.h"
#include "text/hf_folder.h"

namespace se {
namespace {

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

void join(const std::vector<int32_t>& more, std::vector<int32_t>& ids) {
  for (const int32_t id : more) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

Result<Checkpoint> load(const std::string& path, const LoadOptions& options) {
  Checkpoint out;
  SE_ASSIGN(LoadedModel loaded, load_model(path, LoadFor::kRun, options.threads));
  out.file = std::move(loaded.file), out.model = std::move(loaded.model);
  SE_ASSIGN(CheckpointText text, read_checkpoint_text(out.file));
  out.vocab = std::move(text.vocab), out.chat_template = std::move(text.chat_template);
  out.end_ids = std::move(text.end_ids);
  SE_TRY(check_vocab(out.file, int64_t(out.vocab.tokens.size()), out.model->shape().vocab));
  const Status finite = check_finite(out.file, options.report);
  SE_TRY(out.file.check());  // if the file is no longer what it was, that is the reason for all else
  SE_TRY(finite);
  out.file.release_packed();
  return out;
}

}  // namespace

Result<LoadedModel> load_model(const std::string& path, LoadFor purpose, int threads) {
  LoadedModel out;
  SE_ASSIGN(out.file, ModelFile::open(path, check_architecture));
  auto model = find_family(out.file.config().architecture)->load(out.file);
  SE_TRY(out.file.check());
  SE_ASSIGN(out.model, std::move(model));
  if (purpose == LoadFor::kLook) return out;
  out.file.pack(threads);
  SE_TRY(out.file.check());
  return out;
}

Result<CheckpointText> read_checkpoint_text(const ModelFile& file) {
  CheckpointText out;
  if (const Gguf* gguf = file.gguf()) {
    SE_ASSIGN(out.vocab, read_vocab(*gguf));
    SE_ASSIGN(out.chat_template, gguf->string("tokenizer.chat_template", ""));
    out.end_ids = end_ids(out.vocab);
  } else {
    SE_ASSIGN(text::FolderText text, text::read_folder_text(file.path()));
    out.vocab = std::move(text.vocab), out.chat_template = std::move(text.chat_template);
    out.end_ids = std::move(text.end_ids);
    join(file.end_ids(), out.end_ids);
  }
  return out;
}

Result<Checkpoint> load_checkpoint(const std::string& path, const LoadOptions& options) {
  try {
    return load(path, options);
  } catch (const std::exception& e) {  // bad_alloc on metadata as large as memory
    return exhausted(format("{}: cannot load: {}", path, e.what()));
  }
}

}  // namespace se
