# SPDX-License-Identifier: Apache-2.0
"""Model passes, one per file. A pass changes a model in place and names no operator."""

from anybit.onnx.passes.absorb_transposes import AbsorbTransposes
from anybit.onnx.passes.add_functions import AddFunctions
from anybit.onnx.passes.ask_types import AskTypes
from anybit.onnx.passes.batch_norm_to_affine import BatchNormToAffine
from anybit.onnx.passes.change_batch import ChangeBatch
from anybit.onnx.passes.channels_last import ChannelsLast
from anybit.onnx.passes.compute_in_float32 import ComputeInFloat32
from anybit.onnx.passes.drop_identities import DropIdentities
from anybit.onnx.passes.drop_metadata import DropMetadata
from anybit.onnx.passes.drop_zeros import DropZeros
from anybit.onnx.passes.dynamic_sizes import DynamicSizes
from anybit.onnx.passes.expand_multi_threshold import ExpandMultiThreshold
from anybit.onnx.passes.extract_conv_bias import ExtractConvBias
from anybit.onnx.passes.fence_pairs import FencePairs
from anybit.onnx.passes.fix_reshapes import FixReshapes
from anybit.onnx.passes.fold_batch_norm import FoldBatchNorm
from anybit.onnx.passes.fold_constants import FoldConstants
from anybit.onnx.passes.from_qdq import FromQdq
from anybit.onnx.passes.fuse_layer_norm import FuseLayerNorm
from anybit.onnx.passes.gemm_to_matmul import GemmToMatMul
from anybit.onnx.passes.identifiers import Identifiers
from anybit.onnx.passes.infer_shapes import InferShapes
from anybit.onnx.passes.inline_functions import InlineFunctions
from anybit.onnx.passes.join_conv_bias import JoinConvBias
from anybit.onnx.passes.lift_opset import LiftOpset
from anybit.onnx.passes.lower import Lower
from anybit.onnx.passes.mean_to_conv import MeanToConv
from anybit.onnx.passes.mean_to_pool import MeanToPool
from anybit.onnx.passes.move_transposes import MoveTransposes
from anybit.onnx.passes.name_layers import NameLayers
from anybit.onnx.passes.name_nodes import NameNodes
from anybit.onnx.passes.name_sizes import NameSizes
from anybit.onnx.passes.normalize import Normalize
from anybit.onnx.passes.one_scale import OneScale
from anybit.onnx.passes.own_constants import OwnConstants
from anybit.onnx.passes.remove_quantizers import RemoveQuantizers
from anybit.onnx.passes.separate_names import SeparateNames
from anybit.onnx.passes.simplify import Simplify
from anybit.onnx.passes.split_dynamic_products import SplitDynamicProducts
from anybit.onnx.passes.split_sequences import SplitSequences
from anybit.onnx.passes.standard_layout import StandardLayout
from anybit.onnx.passes.to_nbits import ToNBits
from anybit.onnx.passes.to_qdq import ToQdq
from anybit.onnx.passes.trim_constants import TrimConstants
from anybit.onnx.passes.use_names import UseNames
from anybit.onnx.passes.use_standard_pair import UseStandardPair

__all__ = [
    "AbsorbTransposes",
    "AddFunctions",
    "AskTypes",
    "BatchNormToAffine",
    "ChangeBatch",
    "ChannelsLast",
    "ComputeInFloat32",
    "DropIdentities",
    "DropMetadata",
    "DropZeros",
    "DynamicSizes",
    "ExpandMultiThreshold",
    "ExtractConvBias",
    "FencePairs",
    "FixReshapes",
    "FoldBatchNorm",
    "FoldConstants",
    "FromQdq",
    "FuseLayerNorm",
    "GemmToMatMul",
    "Identifiers",
    "InferShapes",
    "InlineFunctions",
    "JoinConvBias",
    "LiftOpset",
    "Lower",
    "MeanToConv",
    "MeanToPool",
    "MoveTransposes",
    "NameLayers",
    "NameNodes",
    "NameSizes",
    "Normalize",
    "OneScale",
    "OwnConstants",
    "RemoveQuantizers",
    "SeparateNames",
    "Simplify",
    "SplitDynamicProducts",
    "SplitSequences",
    "StandardLayout",
    "ToNBits",
    "ToQdq",
    "TrimConstants",
    "UseNames",
    "UseStandardPair",
]
