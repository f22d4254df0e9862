#include "kernels/embed/embed.h"

#include <gtest/gtest.h>

#include "base/npy.h"
#include "base/rng.h"
#include "device/cpu/thread_pool.h"

namespace se {
namespace {

TEST(Embed, RowsOfAQuantisedTableComeInTheOrderOfTheIdsAndScaled) {
  Npy blocks = Npy::load("tests/goldens/quant/q8_0.blocks.npy");
  const auto values = Npy::load("tests/goldens/quant/q8_0.values.npy").as<float>();
  const int64_t dim = 64, vocab = int64_t(values.size()) / dim;
  const TensorView table = TensorView::of(blocks.bytes.data(), DType::kQ8_0, {vocab, dim});
  std::vector<int32_t> ids;
  Rng rng(1);
  for (int i = 0; i < 41; ++i) ids.push_back(int32_t(rng.below(vocab)));
  for (int threads : {1, 2}) {
    ThreadPool pool(threads);
    Stream stream(pool);
    std::vector<float> out(ids.size() * size_t(dim));
    embed(ids, table, 3.0f, TensorView::of(out.data(), DType::kF32, {int64_t(ids.size()), dim}), stream);
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(out[i], values[size_t(ids[i / size_t(dim)]) * size_t(dim) + i % size_t(dim)] * 3.0f);
  }
}

TEST(Embed, StridedTablesAndNoIdsAreFine) {
  std::vector<float> data{0, 1, -1, 2, 3, -1};
  TensorView table = TensorView::of(data.data(), DType::kF32, {2, 2});
  table.stride[0] = 12;
  ThreadPool pool(1);
  Stream stream(pool);
  float out[2];
  embed(std::vector<int32_t>{1}, table, 1, TensorView::of(out, DType::kF32, {1, 2}), stream);
  EXPECT_EQ(out[0], 2);
  EXPECT_EQ(out[1], 3);
  embed({}, table, 1, TensorView::of(out, DType::kF32, {0, 2}), stream);
}

TEST(Embed, AnIdOutOfRangeIsABug) {
  float data[4] = {}, out[2];
  ThreadPool pool(1);
  Stream stream(pool);
  const TensorView table = TensorView::of(data, DType::kF32, {2, 2}),
                   row = TensorView::of(out, DType::kF32, {1, 2});
  EXPECT_DEATH(embed(std::vector<int32_t>{2}, table, 1, row, stream), "id 2 of 2");
}

}  // namespace
}  // namespace se
