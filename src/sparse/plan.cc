// Assembly: specs, page, groups, staging, layouts. What a stage asked for is data from here on.
#include "sparse/plan.h"

#include <algorithm>
#include <bit>

#include "base/fmt.h"
#include "base/quoted.h"
#include "kernels/attention/latent.h"
#include "sparse/build_plan.h"
#include "sparse/compose.h"
#include "sparse/field_visitors.h"

namespace se {
namespace {

template <typename T>
std::unique_ptr<T> take_as(const StageEntry& entry, std::unique_ptr<Stage> stage) {
  T* typed = dynamic_cast<T*>(stage.get());
  SE_CHECK(typed, "stage {} does not implement the interface of axis {}", entry.name, to_string(entry.axis));
  (void)stage.release();
  return std::unique_ptr<T>(typed);
}

const StageEntry* find_dtype(std::span<const StageEntry* const> stages) {
  for (const StageEntry* entry : stages) {
    if (entry->axis == Axis::kStore && std::string_view(entry->name) == "dtype") return entry;
  }
  return nullptr;
}

// What the stages say of themselves, if they take the model at all.
Status ask_specs(Plan& plan, std::span<const std::string> names) {
  for (size_t i = 1; i < plan.stages.size(); ++i) {
    const Status status = plan.stages[i]->accepts(plan.model);
    if (!status) return status.message().starts_with(names[i]) ? status : status.in(names[i]);
  }
  plan.store_spec = plan.store->spec(plan.model);
  if (plan.prefill) {
    plan.prefill_spec = plan.prefill->spec(plan.model, plan.store_spec);
    for (size_t l = 0; l < plan.model.layers.size() && l < plan.prefill_spec.narrows.size(); ++l) {
      if (plan.model.layers[l].kind != LayerKind::kFull) plan.prefill_spec.narrows[l] = 0;
    }
  }
  for (const auto& keeper : plan.keep) plan.keep_specs.push_back(keeper->spec(plan.model, plan.store_spec));
  if (plan.read) {
    plan.read_spec = plan.read->spec(plan.model, plan.store_spec);
    for (size_t l = 0; l < plan.model.layers.size() && l < plan.read_spec.source.size(); ++l) {
      if (plan.model.layers[l].kind != LayerKind::kFull) plan.read_spec.source[l] = -1;
    }
  }
  return ok();
}

std::vector<const StageSpec*> all_specs(const Plan& plan) {
  std::vector<const StageSpec*> specs = {&plan.store_spec};
  if (plan.prefill) specs.push_back(&plan.prefill_spec);
  for (const KeeperSpec& s : plan.keep_specs) specs.push_back(&s);
  if (plan.read) specs.push_back(&plan.read_spec);
  return specs;
}

// The largest unit, grain or item of the plan, a power of two from 16.
int64_t page_of(const Plan& plan) {
  int64_t page = std::max({16, plan.store_spec.grain, plan.store_spec.bounds_per});
  if (plan.read) page = std::max<int64_t>({page, plan.read_spec.unit, plan.read_spec.index_unit});
  for (const StageSpec* spec : all_specs(plan)) {
    for (const ComponentSpec& c : spec->components) page = std::max<int64_t>(page, c.per);
  }
  return int64_t(std::bit_ceil(uint64_t(page)));
}

// Full layers: one group, or one each where a keeper keeps a set per layer. Windowed layers: one per window.
std::vector<KvGroup> groups_of(const Plan& plan) {
  const bool by_layer = std::any_of(plan.keep_specs.begin(), plan.keep_specs.end(), [](const KeeperSpec& s) {
    return s.scope == KeepScope::kLayer;
  });
  std::vector<KvGroup> groups;
  for (int l = 0; l < int(plan.model.layers.size()); ++l) {
    const LayerKv& layer = plan.model.layers[size_t(l)];
    const int window = layer.kind == LayerKind::kWindow ? layer.window : 0;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const KvGroup& g) {
      return g.window == window && (window > 0 || !by_layer);
    });
    if (group == groups.end()) {
      groups.push_back({{}, int(groups.size()), window});
      group = std::prev(groups.end());
    }
    group->layers.push_back(l);
  }
  return groups;
}

int ring_of(const Plan& plan) {
  int ring = 0;
  for (const KeeperSpec& spec : plan.keep_specs) {
    for (const ScoreSpec& s : spec.scores) {
      if (s.queries == ScoreSpec::Queries::kRing) ring = std::max(ring, s.window);
    }
  }
  return ring;
}

void settle_steps(Plan& plan) {
  plan.staging = plan.keep.empty() ? Staging::kNone : Staging::kLayer;
  plan.ring = ring_of(plan);
  if (plan.model.layers[0].latent()) plan.expand_from = expands_from(plan.model.layers[0]);
  plan.page = page_of(plan);
  for (const StageSpec* spec : all_specs(plan)) {
    plan.chunk = std::max(plan.chunk, spec->chunk);
    plan.last_chunk = std::max(plan.last_chunk, spec->last_chunk);
    plan.prefix = std::min(plan.prefix, spec->prefix);
  }
}

// Components by owner. A reader's lie where it selects, a codec's wherever K and V are stored, everybody
// else's in full layers.
std::vector<KvComponent> components_of(const Plan& plan) {
  std::vector<KvComponent> components;
  const auto add = [&](const std::vector<ComponentSpec>& specs, int owner) {
    for (size_t i = 0; i < specs.size(); ++i) components.push_back({specs[i], owner, int(i)});
  };
  if (plan.ring > 0) {
    const LayerKv& layer = plan.model.layers[0];
    add({{.name = "queries",
          .block = Block::kState,
          .per = kPerSequence,
          .dtype = DType::kF32,
          .shape = {plan.ring, layer.q_heads, layer.k_dim},
          .heads = false,
          .layers = {},
          .last = {}}},
        kDriverOwner);
  }
  std::vector<int> storing;
  for (int l = 0; l < int(plan.model.layers.size()); ++l) {
    if (plan.model.layers[size_t(l)].stores()) storing.push_back(l);
  }
  std::vector<ComponentSpec> payload = plan.store_spec.components;
  for (ComponentSpec& c : payload) {
    if (c.layers.empty()) c.layers = storing;
  }
  add(payload, plan.owner(*plan.store));
  if (plan.prefill) add(plan.prefill_spec.components, plan.owner(*plan.prefill));
  for (size_t k = 0; k < plan.keep.size(); ++k) add(plan.keep_specs[k].components, plan.owner(*plan.keep[k]));
  if (!plan.read) return components;

  std::vector<int> selecting;
  for (int l = 0; l < int(plan.read_spec.source.size()); ++l) {
    if (plan.read_spec.source[size_t(l)] == l) selecting.push_back(l);
  }
  std::vector<ComponentSpec> index = plan.read_spec.components;
  for (ComponentSpec& c : index) {
    if (c.layers.empty()) c.layers = selecting;
  }
  if (!selecting.empty()) add(index, plan.owner(*plan.read));
  return components;
}

Status make_layouts(Plan& plan) {
  SE_ASSIGN(
      plan.layout,
      KvLayout::make(plan.model, groups_of(plan), components_of(plan), plan.page, plan.store_spec.tail));
  if (plan.staging == Staging::kNone) return ok();
  ModelKv one = plan.model;  // layers are of equal shape (check_model): any of them will do
  one.layers.resize(1);
  one.layers[0].kind = LayerKind::kFull;
  std::vector<KvComponent> components;
  const CodecSpec plain = plan.plain->spec(one);
  for (size_t i = 0; i < plain.components.size(); ++i) {
    components.push_back({plain.components[i], plan.owner(*plan.plain), int(i)});
  }
  SE_ASSIGN(plan.staging_layout, KvLayout::make(one, {{{0}, 0}}, std::move(components), plan.page, 0));
  return ok();
}

std::string canonical_text(std::span<const ChosenStage> chosen, std::span<const std::string> printed) {
  std::string text;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (printed[i] == "dtype") continue;  // the default store
    text += (text.empty() ? "" : "+") + printed[i];
  }
  return text.empty() ? "dense" : text;
}

}  // namespace

int64_t Plan::next_slice(int64_t at, int64_t prompt, int64_t most) const {
  int64_t n = std::max(most, last_chunk);
  if (prefill && chunk > 0) n = chunk - at % chunk;
  n = std::min(n, prompt - at);
  const int64_t rest = prompt - at - n;
  return rest > 0 && rest < last_chunk ? n + rest : n;  // the last one holds the whole observation window
}

int Plan::owner(const Stage& stage) const {
  const auto at = std::find(stages.begin(), stages.end(), &stage);
  SE_CHECK(at != stages.end(), "a stage of another plan than {}", text);
  return int(at - stages.begin());
}

namespace {

Result<std::shared_ptr<const Plan>> assemble(std::string_view text,
                                             const ModelKv& model,
                                             std::span<const StageEntry* const> entries) {
  const StageEntry* dtype = find_dtype(entries);
  SE_CHECK(dtype, "a table of {} stages without the codec dtype", entries.size());
  SE_ASSIGN(std::vector<ChosenStage> chosen, choose_stages(text, entries));
  SE_TRY(check_model(model));

  auto plan = std::make_shared<Plan>();
  plan->model = model;
  std::vector<std::string> printed;
  for (const ChosenStage& c : chosen) printed.push_back(print_stage(*c.entry, *c.stage));
  plan->text = canonical_text(chosen, printed);

  const StageEntry* store = dtype;
  std::vector<std::string> prefill, keepers, reader;
  for (ChosenStage& c : chosen) {
    const StageEntry& e = *c.entry;
    switch (e.axis) {
      case Axis::kKeep:
        plan->keep.push_back(take_as<Keeper>(e, std::move(c.stage)));
        keepers.emplace_back(e.name);
        break;
      case Axis::kStore:
        plan->store = take_as<Codec>(e, std::move(c.stage));
        store = &e;
        break;
      case Axis::kRead:
        plan->read = take_as<Reader>(e, std::move(c.stage));
        reader.emplace_back(e.name);
        break;
      case Axis::kPrefill:
        plan->prefill = take_as<PrefillReader>(e, std::move(c.stage));
        prefill.emplace_back(e.name);
        break;
      case Axis::kPlace:
        return unsupported(
            format("{}: this version has no stages of the axis {}", e.name, to_string(e.axis)));
    }
  }
  if (!plan->store) plan->store = take_as<Codec>(*dtype, dtype->make());
  plan->plain = take_as<Codec>(*dtype, dtype->make());

  std::vector<std::string> names = {"", store->name, dtype->name};
  plan->stages = {nullptr, plan->store.get(), plan->plain.get()};
  if (plan->prefill) {
    plan->stages.push_back(plan->prefill.get());
    names.push_back(prefill[0]);
  }
  for (size_t k = 0; k < keepers.size(); ++k) {
    plan->stages.push_back(plan->keep[k].get());
    names.push_back(keepers[k]);
  }
  if (plan->read) {
    plan->stages.push_back(plan->read.get());
    names.push_back(reader[0]);
  }

  SE_TRY(ask_specs(*plan, names));
  SE_TRY(check_composition(*plan, names));
  settle_steps(*plan);
  SE_TRY(make_layouts(*plan));
  add_fingerprints(*plan, names);
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace

Result<std::shared_ptr<const Plan>> build_plan(std::string_view text,
                                               const ModelKv& model,
                                               std::span<const StageEntry* const> stages) {
  auto plan = assemble(text, model, stages);
  if (!plan) return plan.status().in(format("plan {}", quoted(text, 512)));
  return plan;
}

}  // namespace se
