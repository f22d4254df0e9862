#include "kernels/linear/gemm_cuda.h"

#include <utility>

#include "base/check.h"
#include "base/fmt.h"
#include "device/cuda/cublaslt.h"
#include "device/cuda/stream.h"

namespace se::cuda {

struct Gemm::State {
  const CublasLt* lt = nullptr;
  GemmKind kind = GemmKind::kBF16;
  int n = 0, k = 0, most_rows = 0;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatmulAlgo_t algo{};
  Buffer scratch;
};

namespace {

constexpr size_t kScratch = 32 << 20;
constexpr float kOne = 1, kZero = 0;

cudaDataType_t in_type(GemmKind kind) { return kind == GemmKind::kBF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3; }
cudaDataType_t out_type(GemmKind kind) { return kind == GemmKind::kBF16 ? CUDA_R_32F : CUDA_R_16BF; }

// The library counts by columns: w is its [k, n], x [k, rows], y [n, rows].
struct Layouts {
  const CublasLt& lt;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  Layouts(const CublasLt& library, GemmKind kind, int n, int k, int rows) : lt(library) {
    SE_CUBLASLT(lt, layout_create(&w, in_type(kind), uint64_t(k), uint64_t(n), k));
    SE_CUBLASLT(lt, layout_create(&x, in_type(kind), uint64_t(k), uint64_t(rows), k));
    SE_CUBLASLT(lt, layout_create(&y, out_type(kind), uint64_t(n), uint64_t(rows), n));
  }
  Layouts(const Layouts&) = delete;
  Layouts& operator=(const Layouts&) = delete;
  ~Layouts() { lt.layout_destroy(w), lt.layout_destroy(x), lt.layout_destroy(y); }
};

template <typename T>
void set(const CublasLt& lt, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, T value) {
  SE_CUBLASLT(lt, desc_set(desc, what, &value, sizeof value));
}

}  // namespace

Result<Gemm> Gemm::plan(GemmKind kind, int n, int k, int most_rows) {
  SE_CHECK(n > 0 && k > 0 && n % 16 == 0 && k % 16 == 0 && most_rows > 0,
           "gemm [{}, {}] x {} rows: expected multiples of 16",
           n,
           k,
           most_rows);
  SE_ASSIGN(const CublasLt* const lt, cublaslt());
  Gemm g;
  g.state_ = new State;
  State& s = *g.state_;
  s.lt = lt, s.kind = kind, s.n = n, s.k = k, s.most_rows = most_rows;
  SE_CUBLASLT(*lt, desc_create(&s.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(*lt, s.desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (kind == GemmKind::kFp8) set(*lt, s.desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  cublasLtMatmulPreference_t wish = nullptr;
  SE_CUBLASLT(*lt, preference_create(&wish));
  const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  SE_CUBLASLT(*lt,
              preference_set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kScratch, sizeof kScratch));
  SE_CUBLASLT(
      *lt,
      preference_set(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction, sizeof no_reduction));
  const Layouts l(*lt, kind, n, k, most_rows);
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  const cublasStatus_t status = lt->heuristic(lt->handle, s.desc, l.w, l.x, l.y, l.y, wish, 8, found, &count);
  lt->preference_destroy(wish);
  for (int i = 0; i < count; ++i) {
    int32_t splits = 1;
    size_t written = 0;
    lt->algo_get(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits, &written);
    if (found[i].state != CUBLAS_STATUS_SUCCESS || splits > 1) continue;
    s.algo = found[i].algo;
    SE_ASSIGN(s.scratch, Buffer::allocate(int64_t(found[i].workspaceSize) + 256));
    return g;
  }
  return unsupported(format("cuBLASLt {} has no algorithm for [{}, {}] x {} rows (kind {}): {}",
                            lt->version(),
                            n,
                            k,
                            most_rows,
                            int(kind),
                            lt->text(status)));
}

Gemm::Gemm(Gemm&& other) noexcept { std::swap(state_, other.state_); }
Gemm& Gemm::operator=(Gemm&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Gemm::~Gemm() {
  if (!state_) return;
  if (state_->desc) state_->lt->desc_destroy(state_->desc);
  delete state_;
}

void Gemm::run(const void* w,
               const void* x,
               int rows,
               void* y,
               bool add,
               Stream& stream,
               const float* w_scale,
               const float* x_scale) const {
  const State& s = *state_;
  SE_CHECK(rows > 0 && rows <= s.most_rows && (!add || s.kind == GemmKind::kBF16) &&
               (s.kind == GemmKind::kBF16 || (w_scale && x_scale)),
           "gemm [{}, {}] for up to {} rows: {} rows",
           s.n,
           s.k,
           s.most_rows,
           rows);
  if (w_scale) set(*s.lt, s.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scale);
  if (x_scale) set(*s.lt, s.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scale);
  const Layouts l(*s.lt, s.kind, s.n, s.k, rows);
  SE_CUBLASLT(*s.lt,
              matmul(s.lt->handle,
                     s.desc,
                     &kOne,
                     w,
                     l.w,
                     x,
                     l.x,
                     add ? &kOne : &kZero,
                     y,
                     l.y,
                     y,
                     l.y,
                     &s.algo,
                     s.scratch.data(),
                     size_t(s.scratch.bytes()),
                     stream.get()));
}

}  // namespace se::cuda
