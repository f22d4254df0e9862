// A mapping outlives what happens to its file: holes read as zeros and are told.
#include "model/mapped_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "model/testing/gguf_writer.h"

namespace se {
namespace {

constexpr int64_t kPages = 64;

int64_t page() { return sysconf(_SC_PAGESIZE); }
std::string ones() { return std::string(size_t(kPages * page()), '\1'); }
int64_t sum(const MappedFile& f) { return std::accumulate(f.data(), f.data() + f.bytes(), int64_t{0}); }
void resize(const TempFile& file, int64_t bytes) { std::filesystem::resize_file(file.path(), size_t(bytes)); }

TEST(MappedFile, ReadsZerosWhereItsFileShrankAndSaysSo) {
  const TempFile shrinking(ones()), other(ones());
  const MappedFile f = MappedFile::open(shrinking.path()).take(), g = MappedFile::open(other.path()).take();
  EXPECT_EQ(sum(f), kPages * page());
  EXPECT_TRUE(f.check().ok());
  resize(shrinking, 3 * page());
  EXPECT_EQ(sum(f), 3 * page());
  EXPECT_EQ(f.check().code(), Code::kIo);
  EXPECT_NE(f.check().message().find(shrinking.path() + ": shrank from 262144 to 12288 bytes"),
            std::string::npos)
      << f.check().message();
  EXPECT_EQ(sum(g), kPages * page());
  EXPECT_TRUE(g.check().ok());
}

TEST(MappedFile, TellsOfAHoleEvenAfterTheFileHasGrownBack) {
  const TempFile file(ones());
  const MappedFile f = MappedFile::open(file.path()).take();
  resize(file, page());
  EXPECT_EQ(f.data()[5 * page()], 0);
  resize(file, kPages * page());
  EXPECT_NE(f.check().message().find("could not be read"), std::string::npos) << f.check().message();
}

// Within its last page no load faults: the size alone tells.
TEST(MappedFile, TellsOfACutWithinAPage) {
  const TempFile file(ones());
  const MappedFile f = MappedFile::open(file.path()).take();
  resize(file, kPages * page() - 1);
  EXPECT_EQ(sum(f), kPages * page() - 1);
  EXPECT_FALSE(f.check().ok());
}

TEST(MappedFile, GivesItsPlaceBackWhenItGoes) {
  const TempFile file(ones());
  for (int i = 0; i < 10000; ++i) ASSERT_TRUE(MappedFile::open(file.path()).ok()) << i;
}

TEST(MappedFileDeathTest, LeavesOtherFaultsAsTheyWere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TempFile file(ones()), foreign(ones());
  const MappedFile f = MappedFile::open(file.path()).take();
  EXPECT_DEATH(
      {
        signal(SIGBUS, SIG_DFL);  // whatever a sanitizer had put there
        const MappedFile again = MappedFile::open(file.path()).take();
        raise(SIGBUS);
      },
      "");
}

}  // namespace
}  // namespace se
