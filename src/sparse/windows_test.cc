#include "sparse/windows.h"

#include <gtest/gtest.h>

namespace se {
namespace {

// Against the definition: the token at p sees p - window + 1 .. p.
TEST(Windows, HoldWhatLaterTokensSee) {
  for (int64_t page : {16, 32}) {
    for (int window : {1, 2, 15, 16, 17, 40, 64}) {
      for (int64_t next = 0; next < 200; ++next) {
        const int64_t begin = window_begin(next, window, page);
        EXPECT_EQ(begin % page, 0);
        EXPECT_LE(begin, std::max<int64_t>(next - window + 1, 0)) << "a token that is seen has gone";
        EXPECT_LT(std::max<int64_t>(next - window + 1, 0) - begin, page) << "a page that nobody sees stays";
        EXPECT_LE((next - begin + page - 1) / page, window_pages(window, page));
        for (int64_t n : {1, 5, 100}) {
          const int64_t skips = window_skips(next, n, window, page);
          if (skips > 0) {
            EXPECT_EQ(next + skips, window_begin(next + n, window, page)) << "stored from a page on";
          } else {
            EXPECT_LE(window_begin(next + n, window, page), next) << "the row grows";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace se
