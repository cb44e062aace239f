"""Primitives of JAX that no program has, and what to do instead.

`tests/interop/primitives.py` holds every primitive of JAX to be here or to be converted.
"""

REFUSED = {
    "it works along an axis of devices. Convert the function of one device, and call it inside of "
    "Podracer's shard_map or pmap; axes of vmap need nothing": """
        all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start
        all_gather_start all_to_all all_to_all_done all_to_all_start axis_index pbroadcast
        pbroadcast_done pbroadcast_start ppermute ppermute_done ppermute_start precv preduced
        psend psum_done psum_invariant psum_invariant_start psum_start ragged_all_to_all
        reduce_scatter reduce_scatter_done reduce_scatter_start reduced_vary_cast_p shard_map
        unreduced_psum unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start
        vary_unreduced_cast_p""",
    "a program cannot call the host. Write the function in jax.numpy, give its result as an argument, or "
    "call podracer::pure_callback or io_callback around the program": """
        buffer_callback io_callback pure_callback""",
    "a program cannot call a library. Write the function in jax.numpy, or load it in Rust "
    "(docs/custom-calls.md)": """
        ffi_call tpu_custom_call""",
    "Podracer runs exported functions themselves: Exported::load": "call_exported",
    "wrap the function in jax.experimental.checkify.checkify, which makes the check a result": "check",
    "only programs with fixed shapes are converted": "dim_as_value dimension_size shape_assertion",
    "use keys of threefry2x32, the default": "rng_bit_generator rng_uniform",
    "it is a part of a Pallas kernel or of a fusion for an accelerator. Write the function in jax.numpy": """
        add_dependency all_reduce_ffs all_reduce_population_count barrier bitcast core_map delay dma_start
        dma_wait einshape_lo emit_pipeline get_barrier_semaphore get_global jaxpr_call load masked_cummax
        masked_cummin masked_cumsum masked_load masked_sort masked_swap matmul_acc_lhs matmul_pop
        matmul_push_rhs mpmd_map multiple_of num_programs pack pack_dtype pack_elementwise pallas_call
        parallel_loop pipeline_body prng_join prng_random_bits prng_seed prng_split program_id reciprocal
        remove_memory_space roll run_scoped sc_fetch_and_add semaphore_read semaphore_signal
        semaphore_wait stochastic_round trace_value unique unpack unpack_dtype unpack_elementwise
        with_memory_space_constraint""",
    "it is a kernel of cuDNN. Write the function in jax.numpy, or use implementation='xla'": """
        cudnn_fusion dot_product_attention_bwd dot_product_attention_fp8_bwd
        dot_product_attention_fp8_fwd dot_product_attention_fwd scaled_matmul""",
    "types and references outside of the function are not supported; give values and return them": """
        accum_grad_in_ref box_get box_set call_hi_primitive call_hi_primitive_linearized create_linear
        from_edtype log_extend log_read new_box new_log pin to_edtype unpin""",
    "tokens order the effects of functions on the host, which a program has none of": """
        after_all create_token""",
    "it is not in a function that JAX has traced": "custom_lin stage unreachable",
}

# References inside of a function become values before the equations are read.
DISCHARGED = "addupdate empty_ref free_ref freeze get new_ref swap".split()


def advice(primitive):
    """The end of a message about a primitive."""
    return next((f": {text}" for text, names in REFUSED.items() if primitive in names.split()), "")
