/* Readers of tensors, by their names in a graph. */
#include "passed_tensors.h"

#include <stdlib.h>
#include <string.h>

static const char *const NO_MEMORY = "there is no memory left";

/* A tensor that a node reads: as an operand, or in a body of it. */
typedef struct graph_read {
    const char *name;
    size_t node;
    int is_in_body;
} graph_read;

/* What is known of a graph: who reads what, its outputs, and the codegens of regions, NULL for other
 * nodes. */
typedef struct graph_reads {
    graph_read *reads;
    size_t count;
    const OrtValueInfo **outputs;
    size_t output_count;
    char **codegens;
    size_t node_count;
} graph_reads;

/* Return the codegen of a region, NULL if the node does not say; the caller frees it. */
static char *read_codegen(const OrtApi *api, const OrtNode *node) {
    region_description described;
    char *bytes = is_region(api, node) ? read_text_attribute(api, node, "ep_cache_context") : NULL;
    if (!bytes) {
        return NULL;
    }
    size_t count = decode_digits(bytes, strlen(bytes));
    char *codegen = NULL;
    if (!read_description((const uint8_t *)bytes, count, &described)) {
        codegen = malloc(strlen(described.codegen) + 1);
        codegen = codegen ? strcpy(codegen, described.codegen) : NULL;
    }
    free_description(&described);
    free(bytes);
    return codegen;
}

static OrtStatus *add_reads(
    const OrtApi *api, const OrtNode *node, size_t number, ort_node_side side, graph_reads *found
) {
    node_values values = {NULL, 0};
    OrtStatus *status = list_values(api, node, side, &values);
    graph_read *grown = NULL;
    if (!status) {
        grown = realloc(found->reads, (found->count + values.count + 1) * sizeof *grown);
        status = grown ? NULL : make_failure(api, "values", "", NO_MEMORY);
        found->reads = grown ? grown : found->reads;
    }
    for (size_t i = 0; i < values.count && !status; i++) {
        const char *name = NULL;
        status = values.values[i] ? ort_value_name(api, values.values[i], &name) : NULL;
        if (!status && name && *name) {
            graph_read read = {name, number, side == ORT_NODE_IMPLICIT_INPUTS};
            found->reads[found->count++] = read;
        }
    }
    free(values.values);
    return status;
}

static OrtStatus *read_graph(
    const OrtApi *api, const OrtGraph *graph, const OrtNode *const *nodes, size_t count,
    graph_reads *found
) {
    found->node_count = count;
    found->codegens = calloc(count + 1, sizeof *found->codegens);
    OrtStatus *status = found->codegens ? ort_count_outputs(api, graph, &found->output_count)
                                        : make_failure(api, "nodes", "", NO_MEMORY);
    if (!status) {
        found->outputs = calloc(found->output_count + 1, sizeof *found->outputs);
        status = found->outputs ? ort_list_outputs(api, graph, found->outputs, found->output_count)
                                : make_failure(api, "values", "", NO_MEMORY);
    }
    for (size_t i = 0; i < count && !status; i++) {
        found->codegens[i] = read_codegen(api, nodes[i]);
        status = add_reads(api, nodes[i], i, ORT_NODE_INPUTS, found);
        status = status ? status : add_reads(api, nodes[i], i, ORT_NODE_IMPLICIT_INPUTS, found);
    }
    return status;
}

static void free_reads(graph_reads *found) {
    for (size_t i = 0; found->codegens && i < found->node_count; i++) {
        free(found->codegens[i]);
    }
    free(found->codegens);
    free(found->outputs);
    free(found->reads);
}

/* Return whether a read is the second or a later one of its node: a region that reads twice ends once.
 */
static int is_repeated(const graph_reads *found, size_t number) {
    for (size_t i = number; i-- > 0 && found->reads[i].node == found->reads[number].node;) {
        if (strcmp(found->reads[i].name, found->reads[number].name) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Count the regions that read what a region makes; 0 where anyone else reads it, too. */
static OrtStatus *count_readers(
    const OrtApi *api, const graph_reads *found, const char *tensor, const char *codegen, size_t *readers
) {
    *readers = 0;
    for (size_t i = 0; i < found->output_count; i++) {
        const char *name = NULL;
        OrtStatus *status = ort_value_name(api, found->outputs[i], &name);
        if (status || (name && strcmp(name, tensor) == 0)) {
            return status;
        }
    }
    size_t count = 0;
    for (size_t i = 0; i < found->count; i++) {
        const graph_read *read = &found->reads[i];
        if (strcmp(read->name, tensor) == 0) {
            const char *other = found->codegens[read->node];
            if (read->is_in_body || !other || strcmp(other, codegen) != 0) {
                return NULL;
            }
            count += !is_repeated(found, i);
        }
    }
    *readers = count;
    return NULL;
}

static OrtStatus *add_passed(
    const OrtApi *api, const char *node, const char *tensor, size_t readers, passed_tensor **list
) {
    passed_tensor *added = calloc(1, sizeof *added);
    if (added) {
        added->next = *list;
        *list = added;
        added->readers = readers;
        added->node = malloc(strlen(node) + 1);
        added->tensor = malloc(strlen(tensor) + 1);
    }
    if (!added || !added->node || !added->tensor) {
        return make_failure(api, node, tensor, NO_MEMORY);
    }
    strcpy(added->node, node);
    strcpy(added->tensor, tensor);
    return NULL;
}

static void forget_node(passed_tensor **list, const char *node) {
    while (*list) {
        passed_tensor *each = *list;
        if (each->node && strcmp(each->node, node) == 0) {
            *list = each->next;
            free(each->node);
            free(each->tensor);
            free(each);
        } else {
            list = &each->next;
        }
    }
}

/* Add what a region makes that passes to others, and that they read it. */
static OrtStatus *add_outputs(
    const OrtApi *api, const OrtNode *const *nodes, size_t maker, const graph_reads *found,
    passed_tensor **list
) {
    node_values made = {NULL, 0};
    const char *name = NULL;
    OrtStatus *status = ort_node_get_text(api, ORT_NODE_NAME, nodes[maker], &name);
    status = status ? status : list_values(api, nodes[maker], ORT_NODE_OUTPUTS, &made);
    for (size_t i = 0; i < made.count && !status; i++) {
        const char *tensor = NULL, *reader = NULL;
        size_t readers = 0;
        status = made.values[i] ? ort_value_name(api, made.values[i], &tensor) : NULL;
        if (status || !tensor || !*tensor) {
            continue;
        }
        status = count_readers(api, found, tensor, found->codegens[maker], &readers);
        if (status || !readers) {
            continue;
        }
        status = add_passed(api, name, tensor, readers, list);
        for (size_t k = 0; k < found->count && !status; k++) {
            if (strcmp(found->reads[k].name, tensor) == 0 && !is_repeated(found, k)) {
                status = ort_node_get_text(api, ORT_NODE_NAME, nodes[found->reads[k].node], &reader);
                status = status ? status : add_passed(api, reader, tensor, 0, list);
            }
        }
    }
    free(made.values);
    return status;
}

OrtStatus *find_passed_tensors(
    const OrtApi *api, const OrtGraph *graph, const OrtNode *const *nodes, size_t count,
    passed_tensor **list
) {
    graph_reads found = {NULL, 0, NULL, 0, NULL, 0};
    OrtStatus *status = read_graph(api, graph, nodes, count, &found);
    for (size_t i = 0; i < count && !status; i++) {
        const char *name = NULL;
        status = found.codegens[i] ? ort_node_get_text(api, ORT_NODE_NAME, nodes[i], &name) : NULL;
        if (!status && name) {
            forget_node(list, name);
        }
    }
    for (size_t i = 0; i < count && !status; i++) {
        status = found.codegens[i] ? add_outputs(api, nodes, i, &found, list) : NULL;
    }
    free_reads(&found);
    return status;
}

static const passed_tensor *find_passed(
    const passed_tensor *list, const char *node, const char *tensor, int is_output
) {
    for (; list; list = list->next) {
        if (is_output == (list->readers > 0) && strcmp(list->node, node) == 0 &&
            strcmp(list->tensor, tensor) == 0) {
            return list;
        }
    }
    return NULL;
}

OrtStatus *mark_passed_tensors(
    const OrtApi *api, const OrtNode *node, const passed_tensor *list, compiled_region *region
) {
    const ort_node_side sides[] = {ORT_NODE_INPUTS, ORT_NODE_OUTPUTS};
    const char *name = NULL;
    OrtStatus *status = ort_node_get_text(api, ORT_NODE_NAME, node, &name);
    for (int side = 0; side < 2 && !status; side++) {
        node_values values = {NULL, 0};
        const region_description *described = &region->description;
        const byoc_tensor *tensors = side ? described->outputs : described->inputs;
        size_t known = side ? described->output_count : described->input_count;
        status = list_values(api, node, sides[side], &values);
        for (size_t i = 0; i < values.count && i < known && !status; i++) {
            const char *tensor = NULL;
            status = values.values[i] ? ort_value_name(api, values.values[i], &tensor) : NULL;
            const passed_tensor *passed =
                status || !tensor || !tensors[i].bytes ? NULL : find_passed(list, name, tensor, side);
            if (passed && side) {
                region->output_readers[i] = passed->readers;
            } else if (passed) {
                region->passed_inputs[i] = 1;
            }
        }
        free(values.values);
    }
    return status;
}

void free_passed_tensors(passed_tensor *list) {
    while (list) {
        passed_tensor *next = list->next;
        free(list->node);
        free(list->tensor);
        free(list);
        list = next;
    }
}
