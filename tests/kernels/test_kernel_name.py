"""Normalised kernel names: what is folded, what is kept, and hostile names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.families import read_table
from kernels.families import LONGEST_KEY, normalise

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<{0}>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<{0}>, std::array<char*, 3ul>)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::"
    "{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}>(int)"
)
CUTLASS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_tn_align8>"
    "(cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_tn_align8::Params)"
)
NORM = (
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)"
)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (ADD.format("float"), "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (ADD.format("c10::BFloat16"), "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (COPY, "elementwise_kernel<direct_copy_kernel_cuda>"),
        (NORM, "vllm::fused_add_rms_norm_kernel"),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(long)",
            "multimem_all_reduce_kernel",
        ),
        (
            "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
            "ampere_fp16_s16816gemm_fp16_#_ldg#_f2f_stages_#_tn",
        ),
        (
            CUTLASS,
            "cutlass::Kernel#<cutlass_#_tensorop_bf16_s16816gemm_bf16_#_tn_align#>",
        ),
        ("triton_poi_fused_mul_silu_1", "triton_poi_fused_mul_silu"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "ncclDevKernel_AllGather_RING_LL"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_MT256x256x64_MI16x16x1_SN_LDSB1_AFC1",
         "Cijk_Alik_Bljk_BBS_BH_Bias"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH"),
        ("[CUDA memcpy DtoH]", "Memcpy DtoH"),
        ("(everything else)", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_normalise_folds_arguments_and_removes_sizes(name: str, key: str) -> None:
    assert normalise(name) == key


def test_normalise_keeps_kernels_apart_that_do_different_work() -> None:
    pairs = [
        ("volta_sgemm_128x32_nt", "volta_sgemm_128x32_tn"),
        (ADD.format("float"), ADD.format("float").replace("CUDAFunctor_add", "MulFunctor")),
        ("ncclKernel_AllReduce_RING_LL(a)", "ncclKernel_AllGather_RING_LL(a)"),
        ("upsample_nearest1d_out_frame", "upsample_nearest2d_out_frame"),
        ("gemm_fp8_kernel", "gemm_fp16_kernel"),
    ]
    assert [pair for pair in pairs if normalise(pair[0]) == normalise(pair[1])] == []


def test_normalise_leaves_its_own_keys_as_they_are() -> None:
    keys = {normalise(row.name) for row in read_table()}
    assert {key for key in keys if normalise(key) != key} == set()


@given(st.text(alphabet="<>(){}[]:_ ,~#ab19xlambda", max_size=120) | st.text(max_size=40))
def test_normalise_takes_any_text(text: str) -> None:
    assert len(normalise(text)) <= LONGEST_KEY


def test_normalise_bounds_what_it_reads() -> None:
    assert len(normalise("k" * 1_000_000)) == LONGEST_KEY
