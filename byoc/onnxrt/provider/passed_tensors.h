/* Which tensors of a model pass only from regions to regions of one codegen, found when it is loaded. */
#ifndef BYOC_PASSED_TENSORS_H
#define BYOC_PASSED_TENSORS_H

#include "graph_nodes.h"

/* An output of a region with its number of readers, or an input, for which it is 0. */
typedef struct passed_tensor {
    struct passed_tensor *next;
    char *node, *tensor;
    size_t readers;
} passed_tensor;

/* Add those of a graph to a list, in place of what it has of the same nodes. */
OrtStatus *find_passed_tensors(
    const OrtApi *api, const OrtGraph *graph, const OrtNode *const *nodes, size_t count,
    passed_tensor **list
);

/* Tell which inputs and outputs of a region pass so: fill in its `passed_inputs` and
 * `output_readers`. Tensors without bytes do not. */
OrtStatus *mark_passed_tensors(
    const OrtApi *api, const OrtNode *node, const passed_tensor *list, compiled_region *region
);

void free_passed_tensors(passed_tensor *list);

#endif
