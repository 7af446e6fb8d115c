/* What the provider reads of a model's graph: nodes, their attributes, and where their tensors are
 * passed. */
#ifndef BYOC_GRAPH_NODES_H
#define BYOC_GRAPH_NODES_H

#include "compiled_region.h"

/* Return the bytes of a node's attribute that is a text, followed by a zero, and their number. The
 * caller frees them; NULL if the node has none. */
char *read_text_attribute(const OrtApi *api, const OrtNode *node, const char *name);

/* Return whether a node is an EPContext with byoc's `source`. */
int is_region(const OrtApi *api, const OrtNode *node);

/* List the nodes of a graph. The caller frees the list. */
OrtStatus *list_nodes(const OrtApi *api, const OrtGraph *graph, const OrtNode ***nodes, size_t *count);

/* The values of one side of a node. */
typedef struct node_values {
    const OrtValueInfo **values;
    size_t count;
} node_values;

/* List the values of one side of a node. The caller frees the list, also after a failure. */
OrtStatus *list_values(
    const OrtApi *api, const OrtNode *node, ort_node_side side, node_values *found
);

/* Find the tensors of one side of a region among the values that onnxruntime passes at a call, those of
 * the node `fused`, and compare their types with those in the model.
 *
 * They are in an order of onnxruntime's own: an operand that occurs twice is there once, and an output
 * that nobody reads is not there. */
OrtStatus *find_positions(
    const OrtApi *api, const OrtNode *node, const OrtNode *fused, ort_node_side side, const char *name,
    const byoc_tensor *tensors, size_t count, size_t *positions
);

#endif
