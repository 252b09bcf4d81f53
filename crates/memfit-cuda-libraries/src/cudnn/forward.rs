//! Calls that are forwarded unchanged to the real library: descriptors, and queries that it answers from them
//! and from the properties in a handle. None of them needs a device.

use super::status;
use crate::entry::Ptr;
use crate::real::forward;

forward! {
    CUDNN, missing status::NOT_SUPPORTED, fail status::INTERNAL_ERROR;

    fn cudnnGetProperty(kind: i32, value: Ptr);
    fn cudnnGraphVersionCheck();
    fn cudnnGetExecutionPlanWorkspaceSize(
        handle: Ptr, execution_plan: Ptr, variant_pack: Ptr, workspace_size_in_bytes: Ptr,
    );
    fn cudnnCreateTensorDescriptor(tensor_desc: Ptr);
    fn cudnnSetTensor4dDescriptor(
        tensor_desc: Ptr, format: i32, data_type: i32, n: i32, c: i32, h: i32, w: i32,
    );
    fn cudnnSetTensor4dDescriptorEx(
        tensor_desc: Ptr, data_type: i32, n: i32, c: i32, h: i32, w: i32, n_stride: i32, c_stride: i32,
        h_stride: i32, w_stride: i32,
    );
    fn cudnnGetTensor4dDescriptor(
        tensor_desc: Ptr, data_type: Ptr, n: Ptr, c: Ptr, h: Ptr, w: Ptr, n_stride: Ptr, c_stride: Ptr,
        h_stride: Ptr, w_stride: Ptr,
    );
    fn cudnnSetTensorNdDescriptor(tensor_desc: Ptr, data_type: i32, nb_dims: i32, dim_a: Ptr, stride_a: Ptr);
    fn cudnnSetTensorNdDescriptorEx(tensor_desc: Ptr, format: i32, data_type: i32, nb_dims: i32, dim_a: Ptr);
    fn cudnnGetTensorNdDescriptor(
        tensor_desc: Ptr, nb_dims_requested: i32, data_type: Ptr, nb_dims: Ptr, dim_a: Ptr, stride_a: Ptr,
    );
    fn cudnnGetTensorSizeInBytes(tensor_desc: Ptr, size: Ptr);
    fn cudnnDestroyTensorDescriptor(tensor_desc: Ptr);
    fn cudnnInitTransformDest(transform_desc: Ptr, src_desc: Ptr, dest_desc: Ptr, dest_size_in_bytes: Ptr);
    fn cudnnCreateTensorTransformDescriptor(transform_desc: Ptr);
    fn cudnnSetTensorTransformDescriptor(
        transform_desc: Ptr, nb_dims: u32, dest_format: i32, pad_before_a: Ptr, pad_after_a: Ptr,
        fold_a: Ptr, direction: i32,
    );
    fn cudnnGetTensorTransformDescriptor(
        transform_desc: Ptr, nb_dims_requested: u32, dest_format: Ptr, pad_before_a: Ptr, pad_after_a: Ptr,
        fold_a: Ptr, direction: Ptr,
    );
    fn cudnnDestroyTensorTransformDescriptor(transform_desc: Ptr);
    fn cudnnCreateOpTensorDescriptor(op_tensor_desc: Ptr);
    fn cudnnSetOpTensorDescriptor(
        op_tensor_desc: Ptr, op_tensor_op: i32, op_tensor_comp_type: i32, op_tensor_nan_opt: i32,
    );
    fn cudnnGetOpTensorDescriptor(
        op_tensor_desc: Ptr, op_tensor_op: Ptr, op_tensor_comp_type: Ptr, op_tensor_nan_opt: Ptr,
    );
    fn cudnnDestroyOpTensorDescriptor(op_tensor_desc: Ptr);
    fn cudnnCreateReduceTensorDescriptor(reduce_tensor_desc: Ptr);
    fn cudnnSetReduceTensorDescriptor(
        reduce_tensor_desc: Ptr, reduce_tensor_op: i32, reduce_tensor_comp_type: i32,
        reduce_tensor_nan_opt: i32, reduce_tensor_indices: i32, reduce_tensor_indices_type: i32,
    );
    fn cudnnGetReduceTensorDescriptor(
        reduce_tensor_desc: Ptr, reduce_tensor_op: Ptr, reduce_tensor_comp_type: Ptr,
        reduce_tensor_nan_opt: Ptr, reduce_tensor_indices: Ptr, reduce_tensor_indices_type: Ptr,
    );
    fn cudnnDestroyReduceTensorDescriptor(reduce_tensor_desc: Ptr);
    fn cudnnGetReductionIndicesSize(
        handle: Ptr, reduce_tensor_desc: Ptr, a_desc: Ptr, c_desc: Ptr, size_in_bytes: Ptr,
    );
    fn cudnnGetReductionWorkspaceSize(
        handle: Ptr, reduce_tensor_desc: Ptr, a_desc: Ptr, c_desc: Ptr, size_in_bytes: Ptr,
    );
    fn cudnnCreateFilterDescriptor(filter_desc: Ptr);
    fn cudnnSetFilter4dDescriptor(
        filter_desc: Ptr, data_type: i32, format: i32, k: i32, c: i32, h: i32, w: i32,
    );
    fn cudnnGetFilter4dDescriptor(
        filter_desc: Ptr, data_type: Ptr, format: Ptr, k: Ptr, c: Ptr, h: Ptr, w: Ptr,
    );
    fn cudnnSetFilterNdDescriptor(
        filter_desc: Ptr, data_type: i32, format: i32, nb_dims: i32, filter_dim_a: Ptr,
    );
    fn cudnnGetFilterNdDescriptor(
        filter_desc: Ptr, nb_dims_requested: i32, data_type: Ptr, format: Ptr, nb_dims: Ptr,
        filter_dim_a: Ptr,
    );
    fn cudnnGetFilterSizeInBytes(filter_desc: Ptr, size: Ptr);
    fn cudnnDestroyFilterDescriptor(filter_desc: Ptr);
    fn cudnnCreatePoolingDescriptor(pooling_desc: Ptr);
    fn cudnnSetPooling2dDescriptor(
        pooling_desc: Ptr, mode: i32, maxpooling_nan_opt: i32, window_height: i32, window_width: i32,
        vertical_padding: i32, horizontal_padding: i32, vertical_stride: i32, horizontal_stride: i32,
    );
    fn cudnnGetPooling2dDescriptor(
        pooling_desc: Ptr, mode: Ptr, maxpooling_nan_opt: Ptr, window_height: Ptr, window_width: Ptr,
        vertical_padding: Ptr, horizontal_padding: Ptr, vertical_stride: Ptr, horizontal_stride: Ptr,
    );
    fn cudnnSetPoolingNdDescriptor(
        pooling_desc: Ptr, mode: i32, maxpooling_nan_opt: i32, nb_dims: i32, window_dim_a: Ptr,
        padding_a: Ptr, stride_a: Ptr,
    );
    fn cudnnGetPoolingNdDescriptor(
        pooling_desc: Ptr, nb_dims_requested: i32, mode: Ptr, maxpooling_nan_opt: Ptr, nb_dims: Ptr,
        window_dim_a: Ptr, padding_a: Ptr, stride_a: Ptr,
    );
    fn cudnnGetPoolingNdForwardOutputDim(
        pooling_desc: Ptr, input_tensor_desc: Ptr, nb_dims: i32, output_tensor_dim_a: Ptr,
    );
    fn cudnnGetPooling2dForwardOutputDim(
        pooling_desc: Ptr, input_tensor_desc: Ptr, n: Ptr, c: Ptr, h: Ptr, w: Ptr,
    );
    fn cudnnDestroyPoolingDescriptor(pooling_desc: Ptr);
    fn cudnnCreateActivationDescriptor(activation_desc: Ptr);
    fn cudnnSetActivationDescriptor(activation_desc: Ptr, mode: i32, relu_nan_opt: i32, coef: f64);
    fn cudnnGetActivationDescriptor(activation_desc: Ptr, mode: Ptr, relu_nan_opt: Ptr, coef: Ptr);
    fn cudnnSetActivationDescriptorSwishBeta(activation_desc: Ptr, swish_beta: f64);
    fn cudnnGetActivationDescriptorSwishBeta(activation_desc: Ptr, swish_beta: Ptr);
    fn cudnnDestroyActivationDescriptor(activation_desc: Ptr);
    fn cudnnCreateLRNDescriptor(norm_desc: Ptr);
    fn cudnnSetLRNDescriptor(norm_desc: Ptr, lrn_n: u32, lrn_alpha: f64, lrn_beta: f64, lrn_k: f64);
    fn cudnnGetLRNDescriptor(norm_desc: Ptr, lrn_n: Ptr, lrn_alpha: Ptr, lrn_beta: Ptr, lrn_k: Ptr);
    fn cudnnDestroyLRNDescriptor(lrn_desc: Ptr);
    fn cudnnDeriveBNTensorDescriptor(derived_bn_desc: Ptr, x_desc: Ptr, mode: i32);
    fn cudnnDeriveNormTensorDescriptor(
        derived_norm_scale_bias_desc: Ptr, derived_norm_mean_var_desc: Ptr, x_desc: Ptr, mode: i32,
        group_cnt: i32,
    );
    fn cudnnCreateSpatialTransformerDescriptor(st_desc: Ptr);
    fn cudnnSetSpatialTransformerNdDescriptor(
        st_desc: Ptr, sampler_type: i32, data_type: i32, nb_dims: i32, dim_a: Ptr,
    );
    fn cudnnDestroySpatialTransformerDescriptor(st_desc: Ptr);
    fn cudnnCreateDropoutDescriptor(dropout_desc: Ptr);
    fn cudnnDestroyDropoutDescriptor(dropout_desc: Ptr);
    fn cudnnDropoutGetStatesSize(handle: Ptr, size_in_bytes: Ptr);
    fn cudnnDropoutGetReserveSpaceSize(xdesc: Ptr, size_in_bytes: Ptr);
    fn cudnnRestoreDropoutDescriptor(
        dropout_desc: Ptr, handle: Ptr, dropout: f32, states: Ptr, state_size_in_bytes: usize, seed: u64,
    );
    fn cudnnGetDropoutDescriptor(dropout_desc: Ptr, handle: Ptr, dropout: Ptr, states: Ptr, seed: Ptr);
    fn cudnnOpsVersionCheck();
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        handle: Ptr, mode: i32, bn_ops: i32, x_desc: Ptr, z_desc: Ptr, y_desc: Ptr,
        bn_scale_bias_mean_var_desc: Ptr, activation_desc: Ptr, size_in_bytes: Ptr,
    );
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        handle: Ptr, mode: i32, bn_ops: i32, x_desc: Ptr, y_desc: Ptr, dy_desc: Ptr, dz_desc: Ptr,
        dx_desc: Ptr, d_bn_scale_bias_desc: Ptr, activation_desc: Ptr, size_in_bytes: Ptr,
    );
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        handle: Ptr, mode: i32, bn_ops: i32, activation_desc: Ptr, x_desc: Ptr, size_in_bytes: Ptr,
    );
    fn cudnnGetNormalizationForwardTrainingWorkspaceSize(
        handle: Ptr, mode: i32, norm_ops: i32, algo: i32, x_desc: Ptr, z_desc: Ptr, y_desc: Ptr,
        norm_scale_bias_desc: Ptr, activation_desc: Ptr, norm_mean_var_desc: Ptr, size_in_bytes: Ptr,
        group_cnt: i32,
    );
    fn cudnnGetNormalizationBackwardWorkspaceSize(
        handle: Ptr, mode: i32, norm_ops: i32, algo: i32, x_desc: Ptr, y_desc: Ptr, dy_desc: Ptr,
        dz_desc: Ptr, dx_desc: Ptr, d_norm_scale_bias_desc: Ptr, activation_desc: Ptr,
        norm_mean_var_desc: Ptr, size_in_bytes: Ptr, group_cnt: i32,
    );
    fn cudnnGetNormalizationTrainingReserveSpaceSize(
        handle: Ptr, mode: i32, norm_ops: i32, algo: i32, activation_desc: Ptr, x_desc: Ptr,
        size_in_bytes: Ptr, group_cnt: i32,
    );
    fn cudnnCreateConvolutionDescriptor(conv_desc: Ptr);
    fn cudnnDestroyConvolutionDescriptor(conv_desc: Ptr);
    fn cudnnSetConvolutionMathType(conv_desc: Ptr, math_type: i32);
    fn cudnnGetConvolutionMathType(conv_desc: Ptr, math_type: Ptr);
    fn cudnnSetConvolutionGroupCount(conv_desc: Ptr, group_count: i32);
    fn cudnnGetConvolutionGroupCount(conv_desc: Ptr, group_count: Ptr);
    fn cudnnSetConvolutionReorderType(conv_desc: Ptr, reorder_type: i32);
    fn cudnnGetConvolutionReorderType(conv_desc: Ptr, reorder_type: Ptr);
    fn cudnnSetConvolution2dDescriptor(
        conv_desc: Ptr, pad_h: i32, pad_w: i32, u: i32, v: i32, dilation_h: i32, dilation_w: i32, mode: i32,
        compute_type: i32,
    );
    fn cudnnGetConvolution2dDescriptor(
        conv_desc: Ptr, pad_h: Ptr, pad_w: Ptr, u: Ptr, v: Ptr, dilation_h: Ptr, dilation_w: Ptr, mode: Ptr,
        compute_type: Ptr,
    );
    fn cudnnSetConvolutionNdDescriptor(
        conv_desc: Ptr, array_length: i32, pad_a: Ptr, filter_stride_a: Ptr, dilation_a: Ptr, mode: i32,
        compute_type: i32,
    );
    fn cudnnGetConvolutionNdDescriptor(
        conv_desc: Ptr, array_length_requested: i32, array_length: Ptr, pad_a: Ptr, stride_a: Ptr,
        dilation_a: Ptr, mode: Ptr, compute_type: Ptr,
    );
    fn cudnnGetConvolution2dForwardOutputDim(
        conv_desc: Ptr, input_tensor_desc: Ptr, filter_desc: Ptr, n: Ptr, c: Ptr, h: Ptr, w: Ptr,
    );
    fn cudnnGetConvolutionNdForwardOutputDim(
        conv_desc: Ptr, input_tensor_desc: Ptr, filter_desc: Ptr, nb_dims: i32, tensor_output_dim_a: Ptr,
    );
    fn cudnnGetConvolutionForwardAlgorithmMaxCount(handle: Ptr, count: Ptr);
    fn cudnnGetConvolutionForwardAlgorithm_v7(
        handle: Ptr, src_desc: Ptr, filter_desc: Ptr, conv_desc: Ptr, dest_desc: Ptr,
        requested_algo_count: i32, returned_algo_count: Ptr, perf_results: Ptr,
    );
    fn cudnnGetConvolutionForwardWorkspaceSize(
        handle: Ptr, x_desc: Ptr, w_desc: Ptr, conv_desc: Ptr, y_desc: Ptr, algo: i32, size_in_bytes: Ptr,
    );
    fn cudnnGetConvolutionBackwardDataAlgorithmMaxCount(handle: Ptr, count: Ptr);
    fn cudnnGetConvolutionBackwardDataAlgorithm_v7(
        handle: Ptr, filter_desc: Ptr, diff_desc: Ptr, conv_desc: Ptr, grad_desc: Ptr,
        requested_algo_count: i32, returned_algo_count: Ptr, perf_results: Ptr,
    );
    fn cudnnGetConvolutionBackwardDataWorkspaceSize(
        handle: Ptr, w_desc: Ptr, dy_desc: Ptr, conv_desc: Ptr, dx_desc: Ptr, algo: i32, size_in_bytes: Ptr,
    );
    fn cudnnGetFoldedConvBackwardDataDescriptors(
        handle: Ptr, filter_desc: Ptr, diff_desc: Ptr, conv_desc: Ptr, grad_desc: Ptr,
        transform_format: i32, folded_filter_desc: Ptr, padded_diff_desc: Ptr, folded_conv_desc: Ptr,
        folded_grad_desc: Ptr, filter_fold_trans_desc: Ptr, diff_pad_trans_desc: Ptr,
        grad_fold_trans_desc: Ptr, grad_unfold_trans_desc: Ptr,
    );
    fn cudnnCnnVersionCheck();
    fn cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(handle: Ptr, count: Ptr);
    fn cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        handle: Ptr, src_desc: Ptr, diff_desc: Ptr, conv_desc: Ptr, grad_desc: Ptr,
        requested_algo_count: i32, returned_algo_count: Ptr, perf_results: Ptr,
    );
    fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
        handle: Ptr, x_desc: Ptr, dy_desc: Ptr, conv_desc: Ptr, grad_desc: Ptr, algo: i32,
        size_in_bytes: Ptr,
    );
    fn cudnnCreateFusedOpsConstParamPack(const_pack: Ptr, ops: i32);
    fn cudnnDestroyFusedOpsConstParamPack(const_pack: Ptr);
    fn cudnnSetFusedOpsConstParamPackAttribute(const_pack: Ptr, param_label: i32, param: Ptr);
    fn cudnnGetFusedOpsConstParamPackAttribute(const_pack: Ptr, param_label: i32, param: Ptr, is_null: Ptr);
    fn cudnnCreateFusedOpsVariantParamPack(var_pack: Ptr, ops: i32);
    fn cudnnDestroyFusedOpsVariantParamPack(var_pack: Ptr);
    fn cudnnSetFusedOpsVariantParamPackAttribute(var_pack: Ptr, param_label: i32, ptr: Ptr);
    fn cudnnGetFusedOpsVariantParamPackAttribute(var_pack: Ptr, param_label: i32, ptr: Ptr);
    fn cudnnCreateFusedOpsPlan(plan: Ptr, ops: i32);
    fn cudnnDestroyFusedOpsPlan(plan: Ptr);
    fn cudnnMakeFusedOpsPlan(handle: Ptr, plan: Ptr, const_pack: Ptr, workspace_size_in_bytes: Ptr);
    fn cudnnCreateRNNDescriptor(rnn_desc: Ptr);
    fn cudnnDestroyRNNDescriptor(rnn_desc: Ptr);
    fn cudnnSetRNNDescriptor_v8(
        rnn_desc: Ptr, algo: i32, cell_mode: i32, bias_mode: i32, dir_mode: i32, input_mode: i32,
        data_type: i32, math_prec: i32, math_type: i32, input_size: i32, hidden_size: i32, proj_size: i32,
        num_layers: i32, dropout_desc: Ptr, aux_flags: u32,
    );
    fn cudnnGetRNNDescriptor_v8(
        rnn_desc: Ptr, algo: Ptr, cell_mode: Ptr, bias_mode: Ptr, dir_mode: Ptr, input_mode: Ptr,
        data_type: Ptr, math_prec: Ptr, math_type: Ptr, input_size: Ptr, hidden_size: Ptr, proj_size: Ptr,
        num_layers: Ptr, dropout_desc: Ptr, aux_flags: Ptr,
    );
    fn cudnnRNNSetClip_v8(rnn_desc: Ptr, clip_mode: i32, clip_nan_opt: i32, lclip: f64, rclip: f64);
    fn cudnnRNNSetClip_v9(rnn_desc: Ptr, clip_mode: i32, lclip: f64, rclip: f64);
    fn cudnnRNNGetClip_v8(rnn_desc: Ptr, clip_mode: Ptr, clip_nan_opt: Ptr, lclip: Ptr, rclip: Ptr);
    fn cudnnRNNGetClip_v9(rnn_desc: Ptr, clip_mode: Ptr, lclip: Ptr, rclip: Ptr);
    fn cudnnBuildRNNDynamic(handle: Ptr, rnn_desc: Ptr, mini_batch: i32);
    fn cudnnGetRNNWeightSpaceSize(handle: Ptr, rnn_desc: Ptr, weight_space_size: Ptr);
    fn cudnnGetRNNWeightParams(
        handle: Ptr, rnn_desc: Ptr, pseudo_layer: i32, weight_space_size: usize, weight_space: Ptr,
        lin_layer_id: i32, m_desc: Ptr, m_addr: Ptr, b_desc: Ptr, b_addr: Ptr,
    );
    fn cudnnCreateRNNDataDescriptor(rnn_data_desc: Ptr);
    fn cudnnDestroyRNNDataDescriptor(rnn_data_desc: Ptr);
    fn cudnnSetRNNDataDescriptor(
        rnn_data_desc: Ptr, data_type: i32, layout: i32, max_seq_length: i32, batch_size: i32,
        vector_size: i32, seq_length_array: Ptr, padding_fill: Ptr,
    );
    fn cudnnGetRNNDataDescriptor(
        rnn_data_desc: Ptr, data_type: Ptr, layout: Ptr, max_seq_length: Ptr, batch_size: Ptr,
        vector_size: Ptr, array_length_requested: i32, seq_length_array: Ptr, padding_fill: Ptr,
    );
    fn cudnnCreateSeqDataDescriptor(seq_data_desc: Ptr);
    fn cudnnDestroySeqDataDescriptor(seq_data_desc: Ptr);
    fn cudnnSetSeqDataDescriptor(
        seq_data_desc: Ptr, data_type: i32, nb_dims: i32, dim_a: Ptr, axes: Ptr,
        seq_length_array_size: usize, seq_length_array: Ptr, padding_fill: Ptr,
    );
    fn cudnnGetSeqDataDescriptor(
        seq_data_desc: Ptr, data_type: Ptr, nb_dims: Ptr, nb_dims_requested: i32, dim_a: Ptr, axes: Ptr,
        seq_length_array_size: Ptr, seq_length_size_requested: usize, seq_length_array: Ptr,
        padding_fill: Ptr,
    );
    fn cudnnCreateAttnDescriptor(attn_desc: Ptr);
    fn cudnnDestroyAttnDescriptor(attn_desc: Ptr);
    fn cudnnSetAttnDescriptor(
        attn_desc: Ptr, attn_mode: u32, n_heads: i32, sm_scaler: f64, data_type: i32, compute_prec: i32,
        math_type: i32, attn_dropout_desc: Ptr, post_dropout_desc: Ptr, q_size: i32, k_size: i32,
        v_size: i32, q_proj_size: i32, k_proj_size: i32, v_proj_size: i32, o_proj_size: i32,
        qo_max_seq_length: i32, kv_max_seq_length: i32, max_batch_size: i32, max_beam_size: i32,
    );
    fn cudnnGetAttnDescriptor(
        attn_desc: Ptr, attn_mode: Ptr, n_heads: Ptr, sm_scaler: Ptr, data_type: Ptr, compute_prec: Ptr,
        math_type: Ptr, attn_dropout_desc: Ptr, post_dropout_desc: Ptr, q_size: Ptr, k_size: Ptr,
        v_size: Ptr, q_proj_size: Ptr, k_proj_size: Ptr, v_proj_size: Ptr, o_proj_size: Ptr,
        qo_max_seq_length: Ptr, kv_max_seq_length: Ptr, max_batch_size: Ptr, max_beam_size: Ptr,
    );
    fn cudnnGetMultiHeadAttnWeights(
        handle: Ptr, attn_desc: Ptr, w_kind: i32, weight_size_in_bytes: usize, weights: Ptr, w_desc: Ptr,
        w_addr: Ptr,
    );
    fn cudnnAdvVersionCheck();
    fn cudnnCreateCTCLossDescriptor(ctc_loss_desc: Ptr);
    fn cudnnSetCTCLossDescriptor(ctc_loss_desc: Ptr, comp_type: i32);
    fn cudnnSetCTCLossDescriptorEx(ctc_loss_desc: Ptr, comp_type: i32, norm_mode: i32, grad_mode: i32);
    fn cudnnSetCTCLossDescriptor_v8(
        ctc_loss_desc: Ptr, comp_type: i32, norm_mode: i32, grad_mode: i32, max_label_length: i32,
    );
    fn cudnnSetCTCLossDescriptor_v9(
        ctc_loss_desc: Ptr, comp_type: i32, norm_mode: i32, ctc_grad_mode: i32, max_label_length: i32,
    );
    fn cudnnGetCTCLossDescriptor(ctc_loss_desc: Ptr, comp_type: Ptr);
    fn cudnnGetCTCLossDescriptorEx(ctc_loss_desc: Ptr, comp_type: Ptr, norm_mode: Ptr, grad_mode: Ptr);
    fn cudnnGetCTCLossDescriptor_v8(
        ctc_loss_desc: Ptr, comp_type: Ptr, norm_mode: Ptr, grad_mode: Ptr, max_label_length: Ptr,
    );
    fn cudnnGetCTCLossDescriptor_v9(
        ctc_loss_desc: Ptr, comp_type: Ptr, norm_mode: Ptr, ctc_grad_mode: Ptr, max_label_length: Ptr,
    );
    fn cudnnDestroyCTCLossDescriptor(ctc_loss_desc: Ptr);
    fn cudnnGetCTCLossWorkspaceSize(
        handle: Ptr, probs_desc: Ptr, gradients_desc: Ptr, labels: Ptr, label_lengths: Ptr,
        input_lengths: Ptr, algo: i32, ctc_loss_desc: Ptr, size_in_bytes: Ptr,
    );
    fn cudnnGetCTCLossWorkspaceSize_v8(
        handle: Ptr, algo: i32, ctc_loss_desc: Ptr, probs_desc: Ptr, gradients_desc: Ptr, size_in_bytes: Ptr,
    );
}
