// sparse/testing/pick_once.h -- calls a keeper's pick for one row, for tests of single keepers.
#pragma once
#include <numeric>
#include <vector>

#include "sparse/testing/attend_check.h"
#include "sparse/testing/fake_codec.h"

namespace se {

struct PickOnce {
  std::vector<int32_t> in;                 // ordinals to choose from
  std::vector<std::vector<float>> scores;  // by spec, by ordinal; empty: not of this step
  int64_t encoded = 0, tail = 0;
  int grain = 1;

  static PickOnce row(int64_t tokens) {
    PickOnce p;
    p.in.resize(size_t(tokens));
    std::iota(p.in.begin(), p.in.end(), 0);
    return p;
  }
  std::vector<int> operator()(const Keeper& keeper, const SeqView& q) {
    FakeCodec codec(0);
    FakeView view(tiny_model(1, 1, 8), 16, codec);
    view.add_row();
    view.begin({0}, Phase::kCommit);
    DeviceStep s = view.step();
    const auto params = keeper.params(q);
    std::copy(params.begin(), params.end(), s.params.at<int32_t>(0));
    std::vector<Scores> views;
    for (auto& v : scores)
      views.push_back(v.empty() ? Scores{}
                                : TensorView::of(v.data(), DType::kF32, {1, 1, int64_t(v.size())}));
    int32_t n = int32_t(in.size()), kept = -1;
    std::vector<int32_t> out(in.size() + 1);
    KeepInput input;
    input.in = {TensorView::of(in.data(), DType::kI32, {1, n}), TensorView::of(&n, DType::kI32, {1})};
    input.scores = views, input.encoded = encoded, input.tail = tail, input.grain = grain;
    KeepList list{TensorView::of(out.data(), DType::kI32, {1, n}), TensorView::of(&kept, DType::kI32, {1})};
    keeper.pick(0, input, list, s);
    return {out.begin(), out.begin() + kept};
  }
};

}  // namespace se
