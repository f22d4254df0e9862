// Sessions in files: `SEKV`, version, a JSON head for people and checks, ids, then the driver's bytes.
#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "base/checked_file.h"
#include "base/hash.h"
#include "engine/engine_impl.h"

namespace se {
namespace {

constexpr char kMagic[8] = {'S', 'E', 'K', 'V', 0, 0, 0, 1};  // the last byte is the version
constexpr int64_t kMostHead = 64 << 20;

// What makes K and V of a token: hyper-parameters that change numbers, and every tensor's name, type, size
// and 12 KiB of it. Costs a few milliseconds, whatever the file's size.
uint64_t weights_fingerprint(const ModelFile& file) {
  Fingerprint f;
  const HyperParameters& c = file.config();
  const auto real = [&](double x) { f.add(std::bit_cast<int64_t>(x)); };
  const auto rope = [&](const RopeConfig& r) {
    real(r.theta.value_or(-1)), real(r.factor), real(r.low_freq_factor), real(r.high_freq_factor);
    real(r.beta_fast), real(r.beta_slow), real(r.attention_factor.value_or(-1));
    f.add(r.dim).add(r.interleaved).add(int64_t(r.scaling)).add(r.original_context);
  };
  f.add(c.architecture)
      .add(c.layers)
      .add(c.hidden)
      .add(c.q_heads)
      .add(c.kv_heads)
      .add(c.head_dim)
      .add(c.window);
  real(c.norm_eps), real(c.attention_scale.value_or(-1)), real(c.attention_softcap.value_or(-1));
  rope(c.rope), rope(c.rope_local);
  for (const ModelTensor& t : file.tensors()) {
    f.add(t.name);
    for (const StoredTensor& part : t.parts) {
      f.add(int64_t(part.view.dtype)).add(part.bytes);
      const char* data = reinterpret_cast<const char*>(part.file->data()) + part.offset;
      const int64_t some = std::min<int64_t>(part.bytes, 4096);
      for (int64_t at : {int64_t{0}, (part.bytes - some) / 2, part.bytes - some})
        f.add(std::string_view(data + at, size_t(some)));
    }
  }
  return f.value();
}

std::string hex(uint64_t x) { return format("{:016x}", x); }

}  // namespace

Status Engine::Impl::write_session(const Session& s, const std::string& path, const std::string& note) {
  if (!intact()) return damage;
  SE_ASSIGN(CheckedWriter to, CheckedWriter::create(path));
  const nlohmann::ordered_json head{{"model", info.name},
                                    {"weights", hex(weights_fingerprint(checkpoint.file))},
                                    {"compute", info.exact ? "exact" : "default"},
                                    {"plan", s.plan->text},
                                    {"state", hex(s.plan->state_id)},
                                    {"tokens", s.seq->logical()},
                                    {"note", note}};
  const std::string text = head.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  to.write(kMagic, sizeof kMagic);
  to.number(int64_t(text.size()));
  to.write(text.data(), int64_t(text.size()));
  to.array(s.forwarded);
  to.number(s.unforwarded);
  runner->driver().save(*s.seq, to);
  return to.finish();
}

Result<std::unique_ptr<Session>> Engine::Impl::read_session(const std::string& path, std::string& note) {
  SE_TRY(damage);
  SE_ASSIGN(CheckedReader from, CheckedReader::open(path));
  char magic[sizeof kMagic] = {};
  SE_TRY(from.read(magic, sizeof magic, "the first bytes of a saved session"));
  if (!std::equal(magic, magic + 4, kMagic))
    return invalid(path + ": not a saved session (no `SEKV` at its start)");
  if (!std::equal(magic, magic + sizeof magic, kMagic))
    return unsupported(
        format("{}: a saved session of version {}, this build reads 1", path, int(uint8_t(magic[7]))));
  SE_ASSIGN(const int64_t size, from.number(2, std::min(kMostHead, from.left()), "bytes of the head"));
  std::string text(size_t(size), 0);
  SE_TRY(from.read(text.data(), size, "the head"));
  const auto head = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!head.is_object()) return from.bad("the head is not a JSON object");
  const auto field = [&](const char* key) {
    const auto it = head.find(key);
    return it != head.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  if (field("weights") != hex(weights_fingerprint(checkpoint.file)))
    return invalid(format(
        "{}: was saved with other weights (model \"{}\"), this is {}", path, field("model"), info.path));
  if (const std::string have = info.exact ? "exact" : "default"; field("compute") != have)
    return invalid(
        format("{}: was computed with --compute {}, this engine runs {}", path, field("compute"), have));
  auto session = std::make_unique<Session>();
  auto plan = plan_of(field("plan"));
  if (!plan.ok()) return plan.status().in(path);
  session->plan = plan.take();
  if (field("state") != hex(session->plan->state_id))
    return invalid(format("{}: {} stores its KV in another way in this build than where it was saved",
                          path,
                          session->plan->text));
  SE_ASSIGN(session->forwarded, from.array<int32_t>(INT32_MAX, "token ids"));
  SE_ASSIGN(const int64_t unforwarded, from.number(-1, info.vocab - 1, "the last token"));
  for (int32_t id : session->forwarded) {
    if (id < 0 || id >= info.vocab)
      return from.bad(format("token id {} of a vocabulary of {}", id, info.vocab));
  }
  session->unforwarded = int32_t(unforwarded);
  SE_ASSIGN(session->seq, runner->driver().load(session->plan, from));
  SE_TRY(from.finish());
  if (session->seq->logical() != int64_t(session->forwarded.size()))
    return from.bad(format("{} token ids for {} tokens", session->forwarded.size(), session->seq->logical()));
  if (session->seq->logical() > info.context)
    return invalid(
        format("{}: holds {} tokens, the context is {}", path, session->seq->logical(), info.context));
  note = field("note");
  return session;
}

Status Engine::save_session(uint64_t session, const std::string& path, const std::string& note) {
  Impl& e = *impl_;
  return e.ask<Status>([&]() -> Status {
    const auto found = e.sessions.find(session);
    if (found == e.sessions.end()) return not_found(format("there is no session {}", session));
    const Session& s = *found->second;
    if (s.busy) return invalid("the session has a turn that is still running");
    if (!s.seq) return invalid("the session has no tokens yet: nothing to save");
    return e.write_session(s, path, note);
  });
}

Result<Engine::SavedSession> Engine::load_session(const std::string& path) {
  Impl& e = *impl_;
  return e.ask<Result<SavedSession>>([&]() -> Result<SavedSession> {
    SavedSession out;
    SE_ASSIGN(auto session, e.read_session(path, out.note));
    out.session = session->id = e.next_id++;
    out.plan = session->plan->text, out.tokens = session->seq->logical();
    e.sessions[out.session] = std::move(session);
    return out;
  });
}

}  // namespace se
